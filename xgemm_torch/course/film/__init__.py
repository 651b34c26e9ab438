"""A rung's film: the trace of a small problem as a page for a browser.

`requests` groups a trace into warp instructions, `schedule` puts those of all warps into one order
in time, `data` makes the compact form that the page reads, `page` the page itself, whose scripts
draw.
"""
