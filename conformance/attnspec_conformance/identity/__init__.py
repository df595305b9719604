"""Is it the same everywhere? Drawn problems, computed in one environment after another, and their bits compared.

    python -m attnspec_conformance.identity [--problems N] [--seed N] [--environments NAME,...]

`problems` draws the numbers, `calls` says what is computed of them, `run` computes the digests in one process,
`environments` lists what a process can be given, `invariances` compares what has to be the same inside of one.
"""
