"""Hold the laws of the library against both mechanisms, with their slow twins."""

import sys

from own_mechanisms import retention, update_gate

from rltransformers.conformance import check_mechanism

reports = [check_mechanism(module.SPEC, twin=module.twin) for module in (retention, update_gate)]
for report in reports:
    print(report, end="\n\n")
sys.exit(not all(report.held for report in reports))
