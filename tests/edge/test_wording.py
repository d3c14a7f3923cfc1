"""In which language a refused caller reads the message."""

import pytest

from extproc.edge.wording import Wording

WORDING = Wording({"zh": "稍后", "en": "later"}, "zh", "load_shedding_fallback", 15, refusal=False)


@pytest.mark.parametrize(
    ("accept_language", "expected"),
    [
        ("", "zh"),
        ("en", "en"),
        ("EN-us", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("fr;q=1.0, en;q=0.5, zh;q=0.4", "en"),
        ("en;q=0, zh;q=0.1", "zh"),
        ("en;q=0", "zh"),
        ("en;q=nonsense", "zh"),
        ("en;q=nan", "zh"),
        ("en;level=1", "en"),
        ("fr,*", "zh"),
        (",;,", "zh"),
        ("," * 1022 + "en", "en"),
        ("," * 60_000 + "en", "zh"),
    ],
)
def test_the_callers_best_language_that_we_have(accept_language: str, expected: str) -> None:
    assert WORDING.language(accept_language, None) == expected


def test_the_tenants_language_goes_first() -> None:
    assert WORDING.language("zh", "en") == "en"
    assert WORDING.language("en", "fr") == "en"
