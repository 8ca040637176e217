"""The clients that the wires are for, against a running server: the official SDKs, pydantic-ai, and the conformance suite."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from jevcompat import runner
from jevcompat.spec import REQUIREMENTS
from pydantic import BaseModel, Field
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models import Model
from pydantic_ai.models.openai_decisions import OpenAIDecisionsModel
from pydantic_ai.models.system_one import SystemOneModel
from pydantic_ai.models.typesafe import TypeSafeModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.system_one import SystemOneProvider
from pydantic_ai.providers.typesafe import TypeSafeProvider
from transformers import PreTrainedTokenizerFast
from typesafe_sdk import AsyncTypeSafeClient, Choice, Noul, RetryPolicy, Score, TypeSafeClient
from typesafe_sdk._core.errors import (
    TypeSafeAPIError,
    TypeSafeAuthenticationError,
    TypeSafeInternalServerError,
    TypeSafeRateLimitError,
    TypeSafeUnprocessableEntityError,
)

from rlcd_lite.engine import DecisionEngine
from rlcd_lite.serve.worker import Limits
from served import NAME, Served, roomy_engine, serving
from test_serve_app import held_up, send, system_one, until

LONG = "I was charged twice; please refund one of the two payments. Ünïcode 환불 🙂. " * 20  # above 1 KiB: sent as zstd
QUESTIONS = {
    "refund": Noul(instructions="Refund?"),
    "one-sided": Noul(criteria={"true": {"examples": ["refund me"]}}),
    "team": Choice(instructions=["Route it.", "One team."], criteria={"Billing": "money", "환불": None, "🙂": {"a": 1}}),
    "anger": Score(instructions="How angry?", criteria=["Calm", {"label": "Angry"}, "Furious"]),
}


def check_answers(response: Any) -> None:
    assert set(response.nouls) == {"refund", "one-sided"}
    assert 0 <= response.nouls["refund"].noul <= 1
    team, anger = response.choices["team"], response.scores["anger"]
    assert list(team.probabilities) == ["Billing", "환불", "🙂"]
    assert team.choice == max(team.probabilities, key=team.probabilities.__getitem__)
    assert anger.score == pytest.approx(sum(level * p for level, p in anger.probabilities.items()))
    assert anger.legend == {0: "Calm", 1: {"label": "Angry"}, 2: "Furious"}
    assert response.model == NAME
    assert response.request_id.startswith("req_")
    assert response.usage.input_tokens > 100


def test_the_official_sdk_sends_zstd_and_reads_every_kind_of_answer(served: Served) -> None:
    with TypeSafeClient(api_key="any", base_url=served.url, compression="zstd", timeout=60) as client:
        response = client.system_one(state=LONG, questions=QUESTIONS)
        assert response.raw_http_response.request.headers["content-encoding"] == "zstd"
        check_answers(response)
        assert (
            client.system_one(state={"text": [LONG]}, questions=QUESTIONS, extra_body={"seed": 1}).answers.keys()
            == QUESTIONS.keys()
        )
        assert [model.name for model in client.models.list().models] == ["jev-latest", NAME]
    with TypeSafeClient(api_key="any", base_url=served.url, compression=False, timeout=60) as client:
        check_answers(client.system_one(state=LONG, questions=QUESTIONS))


def test_the_official_sdk_asks_many_at_once(served: Served) -> None:
    async def ask() -> list[Any]:
        async with AsyncTypeSafeClient(api_key="any", base_url=served.url, compression="zstd", timeout=60) as client:
            return await asyncio.gather(*(client.system_one(state=f"{LONG}{i}", questions=QUESTIONS) for i in range(8)))

    for response in asyncio.run(ask()):
        check_answers(response)


def test_the_official_sdk_raises_its_own_errors(served: Served, tokenizer: PreTrainedTokenizerFast) -> None:
    with TypeSafeClient(api_key="any", base_url=served.url, compression="zstd", timeout=60) as client:
        with pytest.raises(TypeSafeUnprocessableEntityError, match="not blank"):
            client.system_one(state=" ", questions=QUESTIONS)
        with pytest.raises(TypeSafeAPIError, match="window is 32768") as error:
            client.system_one(state="word " * 40000, questions=QUESTIONS)
        assert error.value.status == 413
    with (
        serving(roomy_engine(tokenizer), key="right") as locked,
        TypeSafeClient(api_key="wrong", base_url=locked.url, timeout=60) as client,
        pytest.raises(TypeSafeAuthenticationError, match="key is missing or wrong"),
    ):
        client.system_one(state=LONG, questions=QUESTIONS)


def test_the_official_sdk_comes_again_when_it_is_told_to(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = roomy_engine(tokenizer)
    with serving(engine, limits=Limits(waiting_requests=1)) as found, held_up(engine, monkeypatch) as go:
        busy = [send(found, system_one())]
        until(lambda: found.worker.state().running)
        busy.append(send(found, system_one()))
        until(lambda: found.worker.state().waiting)
        with TypeSafeClient(api_key="any", base_url=found.url, timeout=60) as client:
            with pytest.raises(TypeSafeRateLimitError) as error:
                client.system_one(state=LONG, questions=QUESTIONS, retry=RetryPolicy(max_retries=0))
            assert error.value.retry_after_ms > 0
            threading.Timer(0.3, go.set).start()
            check_answers(client.system_one(state=LONG, questions=QUESTIONS, retry=RetryPolicy(max_retries=8)))
        for connection in busy:
            connection.close()


def test_a_failure_of_the_server_is_one_to_the_sdk(tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = roomy_engine(tokenizer)

    def broken(*args: Any, **more: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(engine, "ask", broken)
    with (
        serving(engine) as found,
        TypeSafeClient(api_key="any", base_url=found.url, retry=RetryPolicy(max_retries=0)) as client,
        pytest.raises(TypeSafeInternalServerError),
    ):
        client.system_one(state=LONG, questions=QUESTIONS)


DECISIONS: list[Any] = [
    {"type": "predicate", "instructions": "Refund?", "name": "refund"},
    {"type": "choice", "instructions": "Team?", "choices": [{"value": "Billing", "description": "money"}, {"value": True}]},
    {
        "type": "score",
        "instructions": [{"type": "input_text", "text": "Anger?"}],
        "levels": [{"label": "Calm"}, {"label": "Angry"}],
    },
]


def test_the_client_of_openai_reads_every_kind_of_answer(served: Served) -> None:
    client = openai.OpenAI(api_key="any", base_url=f"{served.url}/v1", timeout=60)
    said = client.decisions.create(model="gpt-6-luna", input=LONG, questions=DECISIONS)
    predicate, choice, score = said.answers
    assert (predicate.type, predicate.name) == ("predicate", "refund")
    assert choice.type == "choice"
    assert sum(p.probability for p in choice.probabilities) == pytest.approx(1)
    assert choice.choice in ("Billing", True)
    assert score.type == "score"
    assert [level.value for level in score.probabilities] == [0, 1]
    assert said.usage.total_tokens == said.usage.input_tokens
    messages: Any = [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}, {"role": "assistant", "content": "b"}]
    assert len(client.decisions.create(model="m", input=messages, questions=DECISIONS, prompt_cache_key="k").answers) == 3
    refused = client.decisions.create(model="m", input="a", questions=DECISIONS, extra_body={"x_max_risk": 0.1})
    assert [answer.type for answer in refused.answers] == ["refusal"] * 3
    assert [model.id for model in client.models.list()] == ["jev-latest", NAME]
    with pytest.raises(openai.UnprocessableEntityError, match="not blank"):
        client.decisions.create(model="m", input=" ", questions=DECISIONS)
    with pytest.raises(openai.APIStatusError, match="window is 32768"):
        client.decisions.create(model="m", input="word " * 40000, questions=DECISIONS)
    client.close()


def test_the_client_of_openai_comes_again_and_knows_its_errors(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = roomy_engine(tokenizer)

    async def ask(url: str, go: threading.Event) -> None:
        async with openai.AsyncOpenAI(api_key="right", base_url=f"{url}/v1", timeout=60, max_retries=0) as client:
            with pytest.raises(openai.RateLimitError):
                await client.decisions.create(model="m", input="a", questions=DECISIONS)
            threading.Timer(0.3, go.set).start()
            patient = client.with_options(max_retries=8)
            assert len((await patient.decisions.create(model="m", input="a", questions=DECISIONS)).answers) == 3
            with pytest.raises(openai.AuthenticationError):
                await client.with_options(api_key="wrong").decisions.create(model="m", input="a", questions=DECISIONS)

    with serving(engine, limits=Limits(waiting_requests=1), key="right") as found, held_up(engine, monkeypatch) as go:
        busy = [send(found, system_one(), key="right")]
        until(lambda: found.worker.state().running)
        busy.append(send(found, system_one(), key="right"))
        until(lambda: found.worker.state().waiting)
        asyncio.run(ask(found.url, go))
        for connection in busy:
            connection.close()


class Handling(BaseModel):
    verdict: Literal["run", "reject", "ask"] = Field(description="How to handle this command.")
    irreversible: bool = Field(description="Would running this destroy data?")
    area: list[Literal["files", "network", "accounts"]] = Field(description="What does it touch?")


def models(url: str) -> dict[str, Model]:
    return {
        "typesafe": TypeSafeModel("jev-latest", provider=TypeSafeProvider(api_key="any", base_url=url)),
        "system one": SystemOneModel("jev-latest", provider=SystemOneProvider(base_url=url)),
        "openai": OpenAIDecisionsModel("gpt-6-luna", provider=OpenAIProvider(api_key="any", base_url=f"{url}/v1")),
    }


@pytest.mark.parametrize("which", ["typesafe", "system one", "openai"])
def test_agents_of_pydantic_ai_fill_their_output(served: Served, which: str) -> None:

    async def run() -> None:
        async with Agent(models(served.url)[which], output_type=Handling) as agent:
            result = await agent.run("rm -rf / " * 200)
            assert isinstance(result.output, Handling)
            assert result.response.model_name == NAME
            assert result.usage.input_tokens > 100
            with pytest.raises(ModelHTTPError) as error:
                await agent.run("word " * 40000)
            assert error.value.status_code == 413

    asyncio.run(run())


# ---- conformance ----


def check_conformance(found: Served, locked: Served) -> None:
    """Every MUST, 32 of them on a server without a key and one on a server with one; every SHOULD but one, which is about how
    unknown models are refused: any name is answered."""
    open_ = runner.run(found.url, timeout=600)
    behind_key = runner.run(locked.url, key="right", timeout=600, only={"auth"})
    print(f"{found.engine.name}: {open_.summary()}, {open_.seconds:.0f} s")
    for report in (open_, behind_key):
        assert [(f.req, f.message) for result in report.results for f in result.findings] == []
        assert (report.aborted, report.case_errors, report.inconclusive) == (None, [], [])
    assert open_.conformant
    assert open_.count("MUST", "pass") == 32
    passed = {result.id for report in (open_, behind_key) for result in report.results if result.status == "pass"}
    assert set(REQUIREMENTS) - passed == {"errors.shape"}


@pytest.fixture(scope="module")
def locked(tokenizer: PreTrainedTokenizerFast) -> Iterator[Served]:
    with serving(roomy_engine(tokenizer), key="right") as found:
        yield found


def test_the_conformance_suite_passes_in_full(served: Served, locked: Served) -> None:
    check_conformance(served, locked)


@pytest.mark.smollm2
def test_the_conformance_suite_passes_with_the_embedded_model(locked: Served) -> None:
    engine = DecisionEngine.load("smollm2", layout="context-first")
    with serving(engine, limits=Limits(timeout_s=600)) as found:
        check_conformance(found, locked)
