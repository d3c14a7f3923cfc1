"""Class and limits follow from tenant, task and trust; nothing a client says raises them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.classes import Catalog, Claim, ServiceClass, Task, Tenant

P0 = ServiceClass("P0", 0, strict=True, max_output=512, max_prompt=4096)
P1 = ServiceClass("P1", 1, max_output=2048)
P2 = ServiceClass("P2", 2, max_output=2048)


def catalog(default: ServiceClass = P2) -> Catalog:
    return Catalog(
        classes=(P0, P1, P2),
        tenants={
            "pay": Tenant("pay", P0, finish_reason="stop", language="en"),
            "service": Tenant("service", P1),
            "marketing": Tenant("marketing", P2),
        },
        default_tenant=Tenant("anonymous", default),
        tasks={
            "extract": Task("extract", max_output=256, stop=("END",), stop_on=("whitespace",)),
            "summary": Task("summary", ceiling=P1, max_prompt=1000),
            "long": Task("long", max_output=100_000),
        },
        task_by_path={"/v1/completions": "extract"},
        task_by_model={"qwen-summary": "summary"},
    )


def test_the_tenant_decides_the_class() -> None:
    found = catalog().classify(Claim("pay"), task="", path="/v1/chat/completions", model="qwen")

    assert (found.tenant, found.service_class, found.task) == ("pay", P0, "")
    assert (found.max_output, found.max_prompt, found.stop) == (512, 4096, ())
    assert (found.finish_reason, found.language) == ("stop", "en")


def test_an_unknown_tenant_keeps_its_name_and_has_the_default_class() -> None:
    found = catalog().classify(Claim("newcomer"), task="", path="/", model="")

    assert (found.tenant, found.service_class) == ("newcomer", P2)


def test_nobody_is_the_default_tenant() -> None:
    found = catalog(default=P1).classify(Claim(None), task="", path="/", model="")

    assert (found.tenant, found.service_class) == ("anonymous", P1)


@pytest.mark.parametrize(
    ("claim", "default", "expected"),
    [
        (Claim("pay", trusted=False), P2, P2),
        (Claim("pay", trusted=False), P1, P1),
        (Claim("marketing", trusted=False), P1, P2),
        (Claim("PAY"), P2, P2),
        (Claim(None, ambiguous=True), P1, P2),
        (Claim(None, trusted=False, ambiguous=True), P0, P2),
    ],
)
def test_what_is_not_believed_cannot_raise(
    claim: Claim, default: ServiceClass, expected: ServiceClass
) -> None:
    found = catalog(default).classify(claim, task="", path="/", model="")

    assert found.service_class is expected


def test_a_task_is_named_by_header_then_path_then_model() -> None:
    known = catalog()

    def task(header: str, path: str, model: str) -> str:
        return known.classify(Claim("pay"), task=header, path=path, model=model).task

    assert task("summary", "/v1/completions", "qwen-summary") == "summary"
    assert task("unheard-of", "/v1/completions", "qwen-summary") == "extract"
    assert task("", "/v1/chat/completions", "qwen-summary") == "summary"
    assert task("", "/v1/chat/completions", "qwen") == ""


def test_limits_combine_by_the_smallest() -> None:
    known = catalog()

    extract = known.classify(Claim("pay"), task="extract", path="/", model="")
    summary = known.classify(Claim("pay"), task="summary", path="/", model="")
    long = known.classify(Claim("pay"), task="long", path="/", model="")

    assert (extract.max_output, extract.stop) == (256, ("END",))
    assert (extract.stop_on, long.stop_on) == (("whitespace",), ())
    assert (summary.service_class, summary.max_output, summary.max_prompt) == (P1, 2048, 1000)
    assert long.max_output == 512


@given(
    tenant=st.sampled_from([None, "pay", "service", "marketing", "x", "pay,marketing", "PAY"]),
    trusted=st.booleans(),
    ambiguous=st.booleans(),
    task=st.sampled_from(["", "extract", "summary", "long", "x"]),
    path=st.sampled_from(["/", "/v1/completions"]),
    model=st.sampled_from(["", "qwen-summary"]),
    default=st.sampled_from([P0, P1, P2]),
)
def test_no_claim_or_task_raises_a_class_or_a_limit(
    tenant: str | None,
    trusted: bool,
    ambiguous: bool,
    task: str,
    path: str,
    model: str,
    default: ServiceClass,
) -> None:
    known = catalog(default)
    claim = Claim(tenant, trusted, ambiguous)

    found = known.classify(claim, task=task, path=path, model=model)

    owner = known.tenants.get(tenant or "", known.default_tenant)
    assert found.service_class.rank >= owner.service_class.rank
    if not trusted:
        assert found.service_class.rank >= default.rank
    assert found.max_output is not None
    assert found.max_output <= (found.service_class.max_output or 0)
