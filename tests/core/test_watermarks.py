"""Classes close and open: hysteresis, order, caution."""

from extproc.core.classes import ServiceClass
from extproc.core.watermarks import Watermarks

Classes = tuple[ServiceClass, ServiceClass, ServiceClass]


def closed(made: Watermarks, classes: Classes) -> list[str]:
    return [each.name for each in classes if made.closed(each)]


def test_what_a_higher_class_did_not_get_no_lower_one_gets(classes: Classes) -> None:
    made, (_, p1, p2) = Watermarks(classes), classes
    made.judge(0.5, 0.0, may_open=True)
    made.refused(p1, 0.5)
    assert closed(made, classes) == ["P2"]
    assert made.mark(p2, 0.5) == 0.5

    made.judge(0.5, 0.1, may_open=False)  # somebody came: no more room than before
    assert closed(made, classes) == ["P2"]
    made.judge(0.49, 0.2, may_open=True)  # somebody left, but there is less than P1 had
    assert closed(made, classes) == ["P2"]
    made.judge(0.5, 0.3, may_open=True)
    assert closed(made, classes) == []


def test_what_a_strict_class_did_not_get_closes_all_others(classes: Classes) -> None:
    made = Watermarks(classes)
    made.refused(classes[0], 0.3)

    assert closed(made, classes) == ["P1", "P2"]


def test_nothing_known_closes_nothing(classes: Classes) -> None:
    made = Watermarks(classes)
    made.judge(0.0, 0.0, may_open=True)
    assert closed(made, classes) == ["P1", "P2"]
    made.judge(None, 1.0, may_open=True)
    assert closed(made, classes) == []


def test_a_class_that_closes_again_and_again_is_let_in_with_caution(classes: Classes) -> None:
    made, (_, _, p2) = Watermarks(classes), classes
    opened_at = []
    for second in range(6):
        made.judge(0.10, float(second), may_open=True)
        opened_at.append(round(made.mark(p2, 0.19), 3))
        made.judge(0.50, second + 0.5, may_open=True)
    assert opened_at[:2] == [0.2, 0.2]
    assert opened_at == sorted(opened_at)
    assert 0.27 < opened_at[-1] < 0.30
    assert 0.19 < made.required(p2) < 0.20

    made.judge(0.50, 1000.0, may_open=True)
    assert made.required(p2) == 0.15
