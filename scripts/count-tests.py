#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""count-tests.py REPORT.xml...: sums JUnit reports of ctest and pytest as "passed failed skipped".

A ctest entry is a whole program; where its output has cmocka's closing lines, the cases inside are
counted. A program that fails without a failed case (it crashed, a sanitizer spoke) counts as one
failure more. Names of what failed or was skipped go to stderr."""

import re
import sys
import xml.etree.ElementTree as ElementTree


def cases_of(text):
    def total(word):
        return sum(int(n) for n in re.findall(rf"^\[  {word} \] (\d+) test\(s\)", text, re.M))

    return total("PASSED "), total("FAILED "), total("SKIPPED")


def main():
    passed = failed = skipped = 0
    for report in sys.argv[1:]:
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
            text = case.findtext("system-out") or ""
            p, f, s = cases_of(text)
            is_failed = case.find("failure") is not None or case.find("error") is not None
            is_failed = is_failed or case.get("status") in ("fail", "notrun", "disabled") and \
                case.find("skipped") is None
            if is_failed:
                f = max(f, 1)
                print(f"  failed: {name}", file=sys.stderr)
            elif case.find("skipped") is not None:
                s = max(s, 1)
                print(f"  skipped: {name}", file=sys.stderr)
            elif p + f + s == 0:
                p = 1
            elif s:
                print(f"  skipped: {s} in {name}", file=sys.stderr)
            passed, failed, skipped = passed + p, failed + f, skipped + s
    print(passed, failed, skipped)


if __name__ == "__main__":
    main()
