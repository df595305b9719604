"""The conformance suite: what attnspec means, as laws that any implementation of attention can be held to.

    pytest -p attnspec_conformance.plugin --pyargs attnspec_conformance --attnspec-backend NAME

Reading order: `clauses` (what is promised), `masks` and `trials` (how a promise is asked for), `oracle` and
`bounds` (the answer, and how far from it is allowed), `judges`, `laws` and `drawn` (the promises about attention),
`operands`, `subjects`, `placement` (who is asked, and where), `foreign`, `adapters` (kernels that know nothing of
attnspec), `exchange` (answers in files), `verdict`, `suite`, `reports` (what came of it), `plugin` (pytest), `test_*`
(the promises about everything else).
"""
