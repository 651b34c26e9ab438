"""Links for a glibc that is older than this machine's.

A linker binds a call to the newest version of a symbol that it finds: on glibc 2.34 or later
``pthread_create`` becomes ``pthread_create@GLIBC_2.34``, and the library does not load before. But
glibc keeps the older versions for old programs. So before libc the linker is given stubs: libraries
without code that are named as glibc's, and that have of every function the newest version that is
not too new. At run time nothing is left of them but names and versions, which every
glibc from the wanted one on has.

A few symbols have no such version. What libstdc++ and its headers ask for is defined here; any
other keeps its version, and ``auditwheel`` refuses the wheel.

By the same means a library for another processor is linked with torch's, of which nothing but their
names is here (`stand_in`).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from .compiler import Compiler
from .settings import BuildError

# From 2.34 on these are part of libc, which until then had none of their functions.
_OWNERS = {
    "libpthread.so.0": re.compile(r"_*pthread_|sem_|mtx_|cnd_|thrd_|tss_|call_once"),
    "libdl.so.2": re.compile(r"dl[a-z]"),
    "librt.so.1": re.compile(r"shm_|mq_|aio_|lio_|timer_"),
}
_LIBRARIES = ("libc.so.6", "libm.so.6", *_OWNERS)
# False means that there may be threads: reference counts are then atomic.
_OWN = {"__libc_single_threaded": "char __libc_single_threaded = 0;"}
# For another processor libstdc++ is static, and asks for these. Calls of the system by number have
# no version.
_OF_STATIC_LIBSTDCXX = {
    "arc4random": "unsigned arc4random(void) {\n"
    "  unsigned x = 0;\n"
    "  while (syscall(SYS_getrandom, &x, sizeof x, 0) != sizeof x) {}\n"
    "  return x;\n"
    "}",
    "stat": "int stat(const char* path, void* to) {\n"
    "  return syscall(SYS_newfstatat, -100, path, to, 0);  // AT_FDCWD\n"
    "}",
    "lstat": "int lstat(const char* path, void* to) {\n"
    "  return syscall(SYS_newfstatat, -100, path, to, 0x100);  // AT_SYMLINK_NOFOLLOW\n"
    "}",
    "fstat64": "int fstat64(int file, void* to) { return syscall(SYS_fstat, file, to); }",
}
_BEFORE_OWN = "#include <sys/syscall.h>\nlong syscall(long, ...);\n"
# What objdump -T prints of a symbol that is defined: flags (i: a function that is chosen by the
# processor), kind (F: a function), section, size, version, name.
_SYMBOL = re.compile(
    r"[0-9a-f]+ (?P<flags>.{6})(?P<kind>[ FO]) (?!\*UND\*|\*ABS\*)\S+\s+[0-9a-f]+\s+"
    r"\(?GLIBC_(?P<version>[\d.]+)\)?\s+(?P<name>\S+)"
)


def numbers(version: str) -> tuple[int, ...]:
    """``"2.28"`` as numbers, which compare; BuildError where it is no version."""
    if not re.fullmatch(r"\d+(\.\d+)+", version):
        raise BuildError(f"XGEMM_GLIBC is {version!r}; it must be a version, as in 2.28")
    return tuple(map(int, version.split(".")))


def write(folder: Path, oldest: str, compiler: Compiler) -> list[Path]:
    """Makes what is to be linked with, before ``-lpthread`` and its like.

    Args:
        folder: where to; files that would not change are left as they are.
        oldest: the glibc that the result must load with, as in ``"2.28"``.
        compiler: g++, whose libraries are looked at.

    Returns:
        Stubs and an object; none where this machine's glibc is no newer.

    Raises:
        BuildError: ``oldest`` is no version; a tool fails.
    """
    limit = numbers(oldest)
    stubs: dict[str, dict[str, str]] = {}  # by library: functions and their versions
    ours = _OWN | (_OF_STATIC_LIBSTDCXX if compiler.crosses else {})
    own = []
    for library in _LIBRARIES:
        found: dict[str, set[tuple[int, ...]]] = {}
        for name, version in _symbols(compiler, library):
            found.setdefault(name, set()).add(numbers(version))
        # A linker takes one library of a name: a stub has all that the library has.
        if all(max(versions) <= limit for versions in found.values()):
            continue
        for name, versions in sorted(found.items()):
            if name in ours:
                own += [ours[name]] if max(versions) > limit else []
            elif owner := _owner(name, library, moved=max(versions) > limit):
                chosen = max((v for v in versions if v <= limit), default=max(versions))
                stubs.setdefault(owner, {})[name] = ".".join(map(str, chosen))
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for library, versions_of in stubs.items():
        script, code = _stub(versions_of)
        (folder / f"{library}.map").write_text(script)
        options = ["-shared", "-nostdlib", f"-Wl,-soname,{library}"]
        options.append(f"-Wl,--version-script={folder / library}.map")
        made.append(_compiled(compiler, folder / library, code, "assembler", options))
    if own:
        code = _BEFORE_OWN + "\n".join(own) + "\n"
        options = ["-c", "-fPIC", "-fvisibility=hidden"]
        made.append(_compiled(compiler, folder / "own.o", code, "c", options))
    return made


def stand_in(folder: Path, names: Sequence[str], compiler: Compiler) -> None:
    """Makes libraries without symbols, for those of another processor, which are not here.

    What is linked with them needs them by name; its other symbols are found when it is loaded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        options = ["-shared", "-nostdlib", f"-Wl,-soname,{name}"]
        _compiled(compiler, folder / name, _stub({})[1], "assembler", options)


def _symbols(compiler: Compiler, library: str) -> Iterator[tuple[str, str]]:
    """Names and versions of a library's functions, and of what `_OWN` has."""
    path = _said(compiler.path, f"-print-file-name={library}").strip()
    if not Path(path).is_file():
        return
    for line in _said(compiler.tool("objdump"), "-T", path).splitlines():
        match = _SYMBOL.match(line)
        if match and (match["kind"] == "F" or "i" in match["flags"] or match["name"] in _OWN):
            yield match["name"], match["version"]


def _owner(name: str, library: str, moved: bool) -> str | None:
    """The library whose stub has a function; None where libc itself is linked with.

    Args:
        name: the function.
        library: where it is.
        moved: whether it may have come there after the oldest glibc.
    """
    if library != "libc.so.6":
        return library
    owners = [owner for owner, names in _OWNERS.items() if names.match(name)]
    return owners[0] if owners and moved else None


def _stub(versions_of: dict[str, str]) -> tuple[str, str]:
    """The version script and the assembly of a library that has these functions."""
    nodes: dict[str, list[str]] = {}
    for name, version in versions_of.items():
        nodes.setdefault(version, []).append(name)
    script = "".join(f"GLIBC_{v} {{ {'; '.join(names)}; }};\n" for v, names in nodes.items())
    code = "".join(f".globl {x}\n.type {x}, %function\n{x}:\n" for x in versions_of)
    return script, f'.text\n{code}.byte 0\n.section .note.GNU-stack,"",%progbits\n'


def _compiled(compiler: Compiler, out: Path, code: str, language: str, options: list[str]) -> Path:
    """Compiles, unless the file is there and made of the same; a newer one would link all anew."""
    source = out.with_name(out.name + ".txt")
    text = f"{' '.join(options)}\n{code}"
    if not (out.exists() and source.exists() and source.read_text() == text):
        words = [compiler.path, *options, "-x", language, "-", "-o", str(out)]
        _said(*words, feed=code)
        source.write_text(text)
    return out


def _said(*command: str, feed: str | None = None) -> str:
    """What a command prints; BuildError where it fails."""
    try:
        return subprocess.run(
            command, input=feed, capture_output=True, text=True, check=True
        ).stdout
    except FileNotFoundError as error:
        raise BuildError(f"XGEMM_GLIBC needs {command[0]}, of binutils") from error
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{' '.join(command[:4])} failed:\n{error.stderr.strip()}") from error
