"""Classes close and open: hysteresis, order, confirmation, and what bars a class that is open."""

from extproc.core.classes import ServiceClass
from extproc.core.watermarks import CONFIRM, Watermarks

Classes = tuple[ServiceClass, ServiceClass, ServiceClass]


def closed(made: Watermarks, classes: Classes) -> list[str]:
    return [each.name for each in classes if made.closed(each)]


def test_a_class_closes_under_its_lower_mark_and_opens_above_its_upper_one(
    classes: Classes,
) -> None:
    made, (_, p1, p2) = Watermarks(classes), classes
    seen = []
    for second, ratio in enumerate((0.15, 0.149, 0.2, 0.201, 0.079, 0.12, 0.121, 0.3)):
        made.judge(ratio, float(second), may_open=True)
        seen.append((ratio, closed(made, classes)))

    assert seen == [
        (0.15, []),
        (0.149, ["P2"]),
        (0.2, ["P2"]),
        (0.201, []),
        (0.079, ["P1", "P2"]),
        (0.12, ["P1", "P2"]),
        (0.121, ["P2"]),
        (0.3, []),
    ]
    made.judge(0.1, 10.0, may_open=True)
    assert (made.unmet(p1, 0.1), made.unmet(p2, 0.1)) == (None, 0.15)
    made.judge(0.18, 11.0, may_open=True)
    assert (made.unmet(p1, 0.18), made.unmet(p2, 0.18)) == (None, 0.2)


def test_only_what_may_have_made_room_opens(classes: Classes) -> None:
    made = Watermarks(classes)
    made.judge(0.1, 0.0, may_open=True)
    made.judge(0.5, 0.1, may_open=False)

    assert closed(made, classes) == ["P2"]


def test_a_shortage_of_our_own_making_must_last_before_it_closes(classes: Classes) -> None:
    made, (_, _, p2) = Watermarks(classes), classes
    made.judge(0.14, 0.0, may_open=True, own=0.14)
    assert closed(made, classes) == []
    assert made.unmet(p2, 0.14) == 0.15  # but nothing is let in

    made.judge(0.15, 1.0, may_open=True, own=0.15)
    assert made.unmet(p2, 0.15) is None
    made.judge(0.14, 2.0, may_open=True, own=0.15)
    made.judge(0.14, 1.9 + CONFIRM, may_open=True, own=0.15)
    assert closed(made, classes) == []
    made.judge(0.14, 2.0 + CONFIRM, may_open=True, own=0.15)
    assert closed(made, classes) == ["P2"]


def test_load_that_is_mostly_not_ours_closes_at_once(classes: Classes) -> None:
    made = Watermarks(classes)
    made.judge(0.14, 0.0, may_open=True, own=0.57)
    assert closed(made, classes) == []
    made.judge(0.14, 0.1, may_open=True, own=0.58)
    assert closed(made, classes) == ["P2"]


def test_what_a_higher_class_did_not_get_no_lower_one_gets(classes: Classes) -> None:
    made, (_, p1, p2) = Watermarks(classes), classes
    made.judge(0.5, 0.0, may_open=True)
    made.refused(p1, 0.5)
    assert (made.unmet(p1, 0.5), made.unmet(p2, 0.5)) == (None, 0.5)
    assert closed(made, classes) == []

    made.judge(0.5, 0.1, may_open=False)  # somebody came: no more room than before
    assert made.unmet(p2, 0.5) == 0.5
    made.judge(0.49, 0.2, may_open=True)  # somebody left, but there is less than P1 had
    assert made.unmet(p2, 0.49) == 0.5
    made.judge(0.5, 0.3, may_open=True)
    assert made.unmet(p2, 0.5) is None


def test_what_a_strict_class_did_not_get_no_other_gets(classes: Classes) -> None:
    made, (p0, p1, p2) = Watermarks(classes), classes
    made.refused(p0, 0.3)

    assert [made.unmet(each, 0.3) for each in (p1, p2)] == [0.3, 0.3]


def test_nothing_known_closes_nothing(classes: Classes) -> None:
    made, (p0, _, _) = Watermarks(classes), classes
    made.refused(p0, 0.3)
    made.judge(0.0, 0.0, may_open=True)
    assert closed(made, classes) == ["P1", "P2"]
    made.judge(None, 1.0, may_open=True)
    assert closed(made, classes) == []
    assert [made.unmet(each, 1.0) for each in classes] == [None, None, None]
