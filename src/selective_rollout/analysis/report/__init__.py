"""The report on recorded groups: what was wasted, what a gate would have done, and the groups themselves.

`collect` reads traces in one pass, `html.render_page` turns the result into one self-contained page,
`diff.compare` sets it against a baseline, and `failif.parse_check` turns it into an exit code.
"""
