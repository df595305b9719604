"""The conformance suite: what attnspec means, as laws that any implementation of attention can be held to.

    pytest -p attnspec_conformance.plugin --pyargs attnspec_conformance --attnspec-backend NAME

Reading order: `clauses` (what is promised), `masks` and `trials` (how a promise is asked for), `oracle` and
`bounds` (the answer, and how far from it is allowed), `judges`, `laws` (the promises about attention), `subjects`
(who is asked), `placement` (on which device), `plugin` (pytest), `test_*` (the promises about everything else).
"""
