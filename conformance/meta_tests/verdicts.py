"""What tests ask of a report."""


def failed(report):
    return {clause for clause, tally in report.by_clause().items() if tally.failed}
