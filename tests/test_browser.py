"""Pages in a real browser: films, the report and the demo's page are clicked and read."""

from __future__ import annotations

import io
import itertools
import re

import browser
import pytest
import report

from xgemm_torch import registry
from xgemm_torch.course.film import command, page
from xgemm_torch.demo import tour
from xgemm_torch.tools.console import console

STAGES = {stage.name: stage for stage in registry.stages()}
# No shared memory; conflicts; register prefetch; cp.async; TMA and mbarriers; limbs, wgmma.
FILMED = (
    "coalesced", "smem_conflicted", "register_prefetch", "cp_async_pipelined", "tma_specialized",
    "mma_fp16x3", "wgmma_fp16x3", "tma_gemv",
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    not set(FILMED) <= set(STAGES), reason="this build leaves stages out that are filmed"
)


@pytest.fixture(scope="module")
def driver():
    with browser.start() as started:
        yield started


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """Films of `FILMED`, by name, and their pages."""
    folder = tmp_path_factory.mktemp("films")
    made = command.write([STAGES[name] for name in FILMED], folder)
    return {film.stage.name: film for film in made}, folder


@pytest.fixture(scope="module")
def report_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    report.main(["--html", str(path)])
    return path


@pytest.fixture(scope="module")
def demo_file(tmp_path_factory):
    """The page with a small race of counts; its other pictures are that one again."""
    folder = tmp_path_factory.mktemp("demo")
    few = [STAGES[name] for name in ("naive", "coalesced", "smem_conflicted")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xgemm_torch.course.race.stages", lambda: few)
        patch.setattr(tour, "COUNTED", (32, 32, 32))
        ladder = tour.ladder(folder, console())
    long = "given: race on shared memory: " + "thread (1, 0, 0) reads at 21_buffer_race.cu:38 " * 4
    stops = [
        tour.Stop("Training, stock and converted", ["Every loss has the same bits."], "counts.png"),
        ladder,
        tour.Stop("Exercise", ["A kernel that is handed out with a race."], code=[long, "+  x;"]),
    ]
    (folder / tour.PAGE).write_text(tour.page(stops), encoding="utf-8")
    return folder / tour.PAGE


@pytest.fixture(params=[*FILMED, "index", "report", "demo"])
def file(request, films, report_file, demo_file):
    """Every page, in turn."""
    if request.param in STAGES:
        return films[1] / page.name_of(STAGES[request.param])
    return {"index": films[1] / "index.html", "report": report_file, "demo": demo_file}[
        request.param
    ]


def opened(driver, path, width=1400):
    browser.theme(driver, "light")
    browser.resize(driver, width)
    driver.get("about:blank")  # the same address with another step would not be loaded anew
    driver.get(path.as_uri())
    return driver


def film_of(driver, films, name, step=0, width=1400):
    return opened(driver, films[1] / page.name_of(STAGES[name]), width).execute_script(
        "show(arguments[0])", step
    )


def text(driver, name):
    return driver.execute_script("return document.getElementById(arguments[0]).textContent", name)


def press(driver, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def click(driver, name):
    from selenium.webdriver.common.by import By

    driver.find_element(By.ID, name).click()


def step_of(driver):
    return int(driver.execute_script("return document.body.dataset.step"))


def test_a_page_fits_can_be_read_and_complains_of_nothing(driver, file):
    opened(driver, file)
    for width, theme in itertools.product(browser.WIDTHS, ("light", "dark")):
        browser.resize(driver, width)
        browser.theme(driver, theme)
        assert browser.overflow(driver) == [], (width, theme)
        assert browser.faint(driver) == [], (width, theme)
        assert browser.clipped(driver) == [], (width, theme)
    assert browser.complaints(driver) == []


@pytest.mark.parametrize("name", FILMED)
def test_a_film_ends_with_the_sums_of_its_data(driver, films, name):
    """What the page counts while it plays is what Python found in the trace."""
    made = films[0][name]
    film_of(driver, films, name)
    firsts = [each["first"] for each in made.content["launches"]]
    ends = [*firsts[1:], len(made.content["steps"]["t"])]
    for number, end in enumerate(ends):
        driver.execute_script("show(arguments[0])", end - 1)
        counts = made.counts(number)
        shared = counts.shared_load + counts.shared_store
        reads = counts.global_load + counts.global_store
        steps = [step.request for step in made.schedules[number].steps]
        kinds = [each.kind for each in steps if each is not None]
        told = {what: int(text(driver, f"sum-{what}")) for what, _ in page.SUMS}
        assert told == {
            "requests": shared.requests + reads.requests,
            "wavefronts": shared.wavefronts,
            "conflicts": shared.conflicts,
            "sectors": reads.sectors,
            "barriers": sum(kind.endswith("barrier") for kind in kinds),
            "boxes": kinds.count("tma"),
            "products": kinds.count("mma") + kinds.count("wgmma"),
        }
    assert f"of {ends[-1]}" in text(driver, "where")
    assert browser.complaints(driver) == []


@pytest.mark.parametrize("width", browser.WIDTHS)
def test_slider_buttons_and_keys_move_a_film(driver, films, width):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    film_of(driver, films, "register_prefetch", width=width)
    last = len(films[0]["register_prefetch"].content["steps"]["t"]) - 1
    for button, wanted in (("next", 1), ("next", 2), ("back", 1), ("last", last), ("first", 0)):
        click(driver, button)
        assert step_of(driver) == wanted
    for key, wanted in (
        (Keys.ARROW_RIGHT, 1), (Keys.ARROW_RIGHT, 2), (Keys.ARROW_LEFT, 1), (Keys.END, last),
        (Keys.HOME, 0),
    ):  # fmt: skip
        press(driver, key)
        assert step_of(driver) == wanted
    click(driver, "barrier")
    assert "come to the barrier" in text(driver, "what")
    at = step_of(driver)
    press(driver, Keys.PAGE_DOWN)
    assert step_of(driver) > at and "barrier" in text(driver, "what")
    press(driver, Keys.PAGE_UP)
    assert step_of(driver) == at
    # A click in the slider's middle, and keys while it has the focus.
    slider = driver.find_element(By.ID, "slider")
    slider.click()
    middle = step_of(driver)
    assert abs(middle - last / 2) < 0.05 * last
    slider.send_keys(Keys.ARROW_RIGHT)
    assert step_of(driver) == middle + 1 == int(slider.get_property("value"))
    assert slider.get_attribute("aria-valuetext").startswith(f"step {middle + 2}: ")
    # Only one warp's steps.
    driver.find_element(By.CSS_SELECTOR, '#only option[value="3"]').click()
    for _ in range(5):
        click(driver, "next")
        assert text(driver, "what").startswith("Warp 3, ")
    assert browser.complaints(driver) == []


def test_a_film_plays_and_stops(driver, films):
    film_of(driver, films, "coalesced")
    press(driver, " ")
    assert text(driver, "play") == "pause"
    driver.execute_async_script("setTimeout(arguments[0], 700)")
    press(driver, " ")
    at = step_of(driver)
    assert 1 <= at <= 12 and text(driver, "play") == "play"
    driver.execute_async_script("setTimeout(arguments[0], 300)")
    assert step_of(driver) == at
    driver.execute_script("show(COUNT - 3)")
    click(driver, "play")
    driver.execute_async_script("setTimeout(arguments[0], 700)")
    assert text(driver, "play") == "play" and text(driver, "where").startswith("step 544 of 544")


@pytest.mark.parametrize("name", FILMED)
def test_the_line_that_is_marked_is_the_steps(driver, films, name):
    made = films[0][name]
    film_of(driver, films, name)
    steps = len(made.content["steps"]["t"])
    for number in range(0, steps, max(1, steps // 25)):
        driver.execute_script("show(arguments[0])", number)
        place = made.content["templates"][made.content["steps"]["t"][number]][1]
        shown = driver.execute_script("""
            const line = document.querySelector("#source i.at"), box = document.getElementById("source");
            if (!line) return null;
            const [l, b] = [line.getBoundingClientRect(), box.getBoundingClientRect()];
            return [document.getElementById("source-name").textContent, line.dataset.n,
                    line.textContent, l.top >= b.top - 1 && l.bottom <= b.bottom + 1];
        """)  # noqa: E501
        if place < 0:
            assert shown is None
            continue
        main, *frames = made.content["places"][place]
        file, _, line = frames[main].rpartition(":")
        assert shown == [
            file, line, made.content["files"][file].splitlines()[int(line) - 1], True,
        ]  # fmt: skip


def test_a_conflict_is_said_and_drawn(driver, films):
    """The stage that has a conflict of 32 ways, and one whose loads have none."""
    made = films[0]["smem_conflicted"]
    worst = max(
        range(len(made.content["templates"])), key=lambda t: made.content["templates"][t][9]
    )
    film_of(driver, films, "smem_conflicted", made.content["steps"]["t"].index(worst))
    assert "a conflict of 32 ways" in text(driver, "what")
    label = "return document.getElementById('smem').getAttribute('aria-label')"
    assert "32 different words in one bank" in driver.execute_script(label)
    colours = """
        const to = document.getElementById("smem").getContext("2d"), seen = {};
        const pixels = to.getImageData(0, 0, to.canvas.width, to.canvas.height).data;
        for (let i = 0; i < pixels.length; i += 4) {
          const key = [...pixels.slice(i, i + 3)]
            .map((v) => v.toString(16).padStart(2, "0")).join("");
          seen[key] = (seen[key] ?? 0) + 1;
        }
        const style = getComputedStyle(document.documentElement);
        return ["--bad", "--now"].map((name) => {
          const hex = style.getPropertyValue(name).trim().slice(1);
          return seen[hex.length === 3 ? [...hex].map((d) => d + d).join("") : hex] ?? 0;
        });
    """
    bad, now = driver.execute_script(colours)
    assert bad == 31 * now > 0  # the first word of a bank is no conflict
    free = next(n for n, t in enumerate(made.content["steps"]["t"])
                if made.content["templates"][t][9] == 1)  # fmt: skip
    driver.execute_script("show(arguments[0])", free)
    assert "no conflict" in text(driver, "what")
    assert driver.execute_script(colours)[0] == 0


def rows_of(driver, table):
    return driver.execute_script(
        "return [...document.getElementById(arguments[0]).rows]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))",
        table,
    )


@pytest.mark.parametrize("name", ["tma_specialized", "wgmma_fp16x3", "tma_gemv"])
def test_a_ring_fills_and_its_mbarriers_are_those_of_the_replay(driver, films, name):
    made = films[0][name]
    number = next(i for i, launch in enumerate(made.launches)
                  if any(r.kind == "tma" for warp in launch for r in warp))  # fmt: skip
    first = made.content["launches"][number]["first"]
    steps = made.schedules[number].steps
    film_of(driver, films, name, first)
    landing = next(i for i, step in enumerate(steps) if step.box >= 0)
    driver.execute_script("show(arguments[0])", first + landing - 1)
    before = rows_of(driver, "slots")
    assert any(row[2] != "0%" for row in before)  # on its way
    driver.execute_script("show(arguments[0])", first + landing)
    assert text(driver, "what").startswith("TMA: a box of ")
    after = rows_of(driver, "slots")
    assert sum(int(r[3][:-1]) for r in after) > sum(int(r[3][:-1]) for r in before)
    driver.execute_script("show(arguments[0])", first + len(steps) - 1)
    last = {state[0]: state[1:] for step in steps for state in step.changed}
    told = [tuple(map(int, row[1:])) for row in rows_of(driver, "mbarriers")]
    assert told == [last[at] for at in sorted(last)]
    slices = [int(row[1]) for row in rows_of(driver, "slots")]
    assert len(set(slices)) == len(slices)


def test_films_lead_to_each_other(driver, films):
    from selenium.webdriver.common.by import By

    opened(driver, films[1] / "index.html")
    driver.find_element(By.LINK_TEXT, "tma_specialized").click()
    assert driver.title == "20 tma_specialized: a film"
    driver.find_element(By.PARTIAL_LINK_TEXT, "mma_fp16x3").click()
    assert driver.title == "21 mma_fp16x3: a film"
    driver.find_element(By.LINK_TEXT, "all films").click()
    assert driver.title == "Films of the ladder"


def column(driver, table, key):
    """The texts of a column in the rows that are shown."""
    return driver.execute_script(
        """
        const [name, key] = arguments, table = document.getElementById(name);
        const at = [...table.tHead.rows[0].cells].findIndex((c) => c.dataset.key === key);
        return [...table.tBodies[0].rows].filter((row) => row.checkVisibility())
          .map((row) => row.cells[at].textContent.trim());
        """,
        table, key,
    )  # fmt: skip


def test_the_report_sorts_filters_and_leads_to_rows(driver, report_file):
    from selenium.webdriver.common.by import By

    opened(driver, report_file, min(browser.WIDTHS))
    box = "//table[@id='t-problems']/ancestor::*[contains(@class,'box')]/preceding-sibling::div[1]"
    all_rows = len(column(driver, "t-problems", "k"))
    field = driver.find_element(By.XPATH, f"{box}//input")
    field.send_keys("nt k<=64")
    kept = column(driver, "t-problems", "k")
    assert 0 < len(kept) < all_rows and all(float(k) <= 64 for k in kept)
    assert set(column(driver, "t-problems", "layout")) == {"NT"}
    count = driver.find_element(By.XPATH, f"{box}//output").text
    assert count == f"{len(kept)} of {all_rows} rows"
    hidden = driver.execute_script(
        "return document.querySelectorAll('[data-points] use.off').length"
    )
    assert hidden > 0
    field.clear()
    field.send_keys(" ")
    choice = driver.find_element(By.XPATH, f"{box}//label[contains(., 'precision')]/select")
    choice.send_keys("ieee")  # a click on an option comes as "input" before it is chosen
    assert set(column(driver, "t-problems", "precision")) == {"ieee"}
    head = driver.find_element(By.CSS_SELECTOR, '#t-problems th[data-key="ratio"] button')
    for sign in (1, -1):
        head.click()
        values = [float(v) for v in column(driver, "t-problems", "ratio") if v != "-"]
        assert values == sorted(values, reverse=sign < 0)
    choice.send_keys("all")
    # A click on a mark leads to its row.
    mark = driver.find_element(By.CSS_SELECTOR, "[data-points] use")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    driver.execute_script(
        "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", mark
    )
    row = driver.find_element(By.CSS_SELECTOR, "#t-problems tr.at")
    assert row.is_displayed()
    assert browser.complaints(driver) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_marks_of_the_report_have_the_colours_of_their_series(driver, report_file, theme):
    from PIL import Image
    from selenium.webdriver.common.by import By

    opened(driver, report_file)
    browser.theme(driver, theme)
    chart = driver.find_element(By.CSS_SELECTOR, "[data-points]")
    picture = Image.open(io.BytesIO(chart.screenshot_as_png)).convert("RGB")
    names = "['paper', 's0', 's1', 's2', 's3']"
    paper, *wanted = (
        tuple(int(h[i : i + 2], 16) for i in (1, 3, 5)) for h in driver.execute_script(
            f"const s = getComputedStyle(document.documentElement);"
            f"return {names}.map((n) => s.getPropertyValue('--' + n).trim())"
            ".map((h) => h.length === 4 ? '#' + [...h.slice(1)].map((d) => d + d).join('') : h)"
        )
    )  # fmt: skip
    # A mark lets a quarter of what is behind it through.
    wanted = [tuple(round(0.72 * c + 0.28 * p) for c, p in zip(x, paper, strict=True))
              for x in wanted]  # fmt: skip
    seen = {colour for _, colour in picture.getcolors(1 << 20)}
    for colour in wanted:
        assert any(max(abs(a - b) for a, b in zip(colour, one, strict=True)) < 6 for one in seen)


@pytest.mark.parametrize("width", browser.WIDTHS)
def test_the_demos_page_shows_its_pictures_so_that_they_can_be_read(driver, demo_file, width):
    opened(driver, demo_file, width)
    images = driver.execute_script(
        "return [...document.images].map((i) => [i.complete, i.naturalWidth, i.clientWidth, i.alt])"
    )
    assert len(images) == 2
    for complete, natural, shown, alt in images:
        assert complete and natural > 0 and shown >= 700 and alt
    assert re.search("A wavefront is one pass", driver.page_source)
    assert browser.complaints(driver) == []


def test_what_does_not_fit_and_what_is_faint_is_found(driver, tmp_path):
    """The checks that the other tests rest on can fail."""
    path = tmp_path / "bad.html"
    path.write_text(
        '<!doctype html><body style="background: #fff"><p style="width: 600px">wide</p>'
        '<p style="color: #999">faint</p><script>missing()</script></body>'
    )
    opened(driver, path, 400)
    assert any("page 6" in each for each in browser.overflow(driver))
    assert browser.faint(driver) == ["2.8: P faint"]
    assert any("missing is not defined" in each for each in browser.complaints(driver))


def test_without_a_browser_tests_skip_and_in_ci_they_fail(monkeypatch):
    monkeypatch.setattr(browser, "missing", lambda: "needs Chromium: apt-get install chromium")
    monkeypatch.delenv("XGEMM_TEST_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs Chromium"), browser.start():
        pass
    monkeypatch.setenv("XGEMM_TEST_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="XGEMM_TEST_BROWSER is set"), browser.start():
        pass
