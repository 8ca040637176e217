"""The running server: its answers are the engine's, its errors are in the words of each wire, and it neither hangs nor tells."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import zstandard
from transformers import PreTrainedTokenizerFast

from conftest import TRIAGE, Command
from rlcd_lite.calibration_file import Calibration, asked, tied
from rlcd_lite.decision_table import DecisionRow
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.errors import UserError
from rlcd_lite.held_out import calibrated_fields
from rlcd_lite.serve import openai_decisions, systemone
from rlcd_lite.serve.app import content_policy
from rlcd_lite.serve.bodies import BodyLimits
from rlcd_lite.serve.worker import Limits
from served import NAME, Served, roomy_engine, serving

STATE = "I was charged twice; please refund one of the two payments."
QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Refund?"},
    "team": {"type": "choice", "instructions": "Team?", "criteria": {"Billing": "money", "Sales": None, "환불 🙂": ["a", 1]}},
    "anger": {"type": "score", "instructions": {"scale": "anger"}, "criteria": ["Calm", {"label": "Angry"}, "Furious"]},
}
DECISIONS: list[dict[str, Any]] = [
    {"type": "predicate", "instructions": "Refund?", "name": "refund"},
    {"type": "choice", "instructions": "Team?", "choices": [{"value": "Billing", "description": "money"}, {"value": True}]},
    {"type": "score", "instructions": "Anger?", "levels": [{"label": "Calm"}, {"label": "Angry", "description": "very"}]},
]


def system_one(questions: dict[str, Any] = QUESTIONS, state: Any = STATE, **more: Any) -> dict[str, Any]:
    return {"model": "jev-latest", "state": state, "questions": questions, **more}


def decisions(questions: list[dict[str, Any]] = DECISIONS, given: Any = STATE, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-6-luna", "input": given, "questions": questions, **more}


BODIES = {
    "/v1/systemone": system_one(),
    "/v1/decisions": decisions(),
    "/v1/decide": {"context": STATE, "schema": {"fields": TRIAGE["fields"]}},
}


def numbers(answer: Any) -> list[float]:
    """All numbers in an answer, in order of their keys."""
    if isinstance(answer, dict):
        return [n for key in sorted(answer) if key != "usage" for n in numbers(answer[key])]
    if isinstance(answer, list):
        return [n for item in answer for n in numbers(item)]
    return [float(answer)] if isinstance(answer, int | float) and not isinstance(answer, bool) else []


# ---- answers ----


def test_system_one_answers_as_the_engine_decides(served: Served) -> None:
    answer = served.post("/v1/systemone", system_one())
    assert answer.status_code == 200
    said = answer.json()
    assert list(said["answers"]) == list(QUESTIONS)
    text, schemas = systemone.ask(systemone.SystemOneRequest.model_validate(system_one()))
    for question, schema in zip(QUESTIONS, schemas, strict=True):
        found, own = said["answers"][question], served.engine.decide(schema, text)["answer"]
        given = list(found["probabilities"].values()) if "probabilities" in found else [found["noul"], 1 - found["noul"]]
        assert given == pytest.approx(own.probabilities, abs=1e-6)
        assert found["x_stated_mean"] == pytest.approx(own.stated_mean, abs=1e-6)
        assert found["x_calibration"] == {"applied": False}
    assert said["model"] == NAME
    assert type(said["usage"]["input_tokens"]) is int
    assert said["usage"]["input_tokens"] > 0
    assert said["usage"]["output_tokens"] == 0


def test_decisions_are_answered_as_the_engine_decides(served: Served) -> None:
    said = served.post("/v1/decisions", decisions()).json()
    text, schemas = openai_decisions.ask(openai_decisions.DecisionsRequest.model_validate(decisions()))
    for found, schema in zip(said["answers"], schemas, strict=True):
        own = served.engine.decide(schema, text)["answer"]
        given = [p["probability"] for p in found["probabilities"]] if "probabilities" in found else [found["probability"]]
        assert given == pytest.approx(own.probabilities[: len(given)], abs=1e-6)
    usage = said["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_our_own_wire_answers_as_the_engine_decides(served: Served) -> None:
    said = served.post("/v1/decide", BODIES["/v1/decide"]).json()
    own = served.engine.decide(TRIAGE, STATE).to_dict()
    assert said["decision"] == own["decision"]
    assert numbers(said["fields"]) == pytest.approx(numbers(own["fields"]), abs=1e-6)
    assert (said["model"], said["notes"]) == (NAME, [])
    assert set(said["usage"]) == {"input_tokens", "cached_tokens", "output_tokens"}


def test_other_questions_their_order_and_their_ids_change_nothing(served: Served) -> None:
    whole = served.post("/v1/systemone", system_one()).json()["answers"]
    for question, about in QUESTIONS.items():
        alone = served.post("/v1/systemone", system_one({"another id": about})).json()["answers"]["another id"]
        assert numbers(alone) == pytest.approx(numbers(whole[question]), abs=1e-5)
    back = served.post("/v1/systemone", system_one(dict(reversed(QUESTIONS.items())))).json()["answers"]
    assert list(back) == list(reversed(QUESTIONS))
    assert numbers(back) == pytest.approx(numbers(whole), abs=1e-5)


def test_200_requests_at_once_are_answered_as_alone(served: Served) -> None:
    routes = list(BODIES)
    alone = {route: served.post(route, BODIES[route]).json() for route in routes}
    with (
        httpx.Client(base_url=served.url, timeout=60, limits=httpx.Limits(max_connections=40)) as client,
        ThreadPoolExecutor(40) as pool,
    ):
        together = list(pool.map(lambda i: client.post(routes[i % 3], json=BODIES[routes[i % 3]]).json(), range(200)))
    for i, said in enumerate(together):
        assert numbers(said) == pytest.approx(numbers(alone[routes[i % 3]]), abs=1e-6)


def test_255_options_are_answered_in_full(served: Served) -> None:
    names = ["Billing", *(f"Queue {i:03d}" for i in range(1, 255))]
    question = {"type": "choice", "instructions": "Queue?", "criteria": dict.fromkeys(names)}
    said = served.post("/v1/systemone", system_one({"q": question})).json()["answers"]["q"]
    assert list(said["probabilities"]) == names
    assert sum(said["probabilities"].values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_compressed_bodies_are_read(served: Served, encoding: str) -> None:
    raw = json.dumps(system_one()).encode()
    sent = gzip.compress(raw) if encoding == "gzip" else zstandard.compress(raw)
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    answer = httpx.post(served.url + "/v1/systemone", content=sent, headers=headers, timeout=60)
    assert answer.json()["answers"] == served.post("/v1/systemone", system_one()).json()["answers"]


def test_models_are_listed_for_both_wires(served: Served) -> None:
    said = httpx.get(served.url + "/v1/models").json()
    assert [model["name"] for model in said["models"]] == [model["id"] for model in said["data"]] == ["jev-latest", NAME]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", model["release_date"]) for model in said["models"])


# ---- errors ----


def shaped(route: str, answer: httpx.Response) -> str:
    """The sentence of an error, which is in the words of its wire."""
    body = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert re.fullmatch(r"req_[0-9a-f]{24}", answer.headers["x-request-id"])
    assert answer.headers["x-typesafe-request-id"] == answer.headers["x-request-id"]
    if route == "/v1/decisions":
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        return str(body["error"]["message"])
    if answer.status_code == 422 and isinstance(body["detail"], list):
        assert all(d["loc"][0] == "body" and isinstance(d["type"], str) for d in body["detail"])
        return str(body["detail"][0]["msg"])
    assert set(body["detail"]) == {"error_type", "message"}
    return str(body["detail"]["message"])


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 422, "can't be read as JSON"),
        (b"[]", 422, ""),
        (b"null", 422, ""),
        (b"", 422, "required"),
        (b"{}", 422, "required"),
        (b'{"a": NaN}', 422, "NaN"),
        (b'{"model": "a", "model": "b"}', 422, "twice"),
        (b'["\\ud800"]', 422, "surrogate"),
        (b"[" * 5000, 422, "deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", 422, "4300"),
        (b"\xff", 422, "UTF-8"),
    ],
)
def test_what_is_not_json_is_422(served: Served, route: str, body: bytes, status: int, words: str) -> None:
    answer = httpx.post(served.url + route, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert words in shaped(route, answer)


@pytest.mark.parametrize(
    ("route", "body", "status", "words"),
    [
        ("/v1/systemone", system_one(state="  "), 422, "not blank"),
        (
            "/v1/systemone",
            system_one({"q": {"type": "choice", "criteria": {"": None, "b": None}}}),
            422,
            "question 'q': it has the blank",
        ),
        ("/v1/systemone", system_one({"q": {"type": "box", "instructions": "x"}}), 422, "text alone"),
        ("/v1/systemone", system_one(assets={"a": {"type": "image"}}), 422, "text alone"),
        ("/v1/systemone", system_one(state="word " * 40000), 413, "window is 32768"),
        ("/v1/systemone", system_one(state="x" * (5 << 20)), 413, "4194304 bytes"),
        ("/v1/systemone", system_one(x_max_risk=2), 422, "less than"),
        ("/v1/decisions", decisions(given="word " * 40000), 413, "window is 32768"),
        ("/v1/decisions", decisions(given=[{"role": "user", "content": [{"type": "input_image"}]}]), 422, "text alone"),
        ("/v1/decide", {"context": STATE, "schema": {}}, 422, "fields"),
        ("/v1/decide", {"context": STATE, "schema": {"fields": [{"name": "a", "type": "list"}]}}, 422, "unknown type 'list'"),
        ("/v1/decide", BODIES["/v1/decide"] | {"max_risk": 0.1}, 422, "max_risk can't be promised"),
        ("/v1/decide", BODIES["/v1/decide"] | {"sets": 0.1, "delta": 0.1}, 422, "delta is about max_risk"),
        ("/v1/decide", BODIES["/v1/decide"] | {"maxrisk": 0.1}, 422, "not permitted"),
        ("/v1/decide", {"context": 3, "schema": {}}, 422, "string"),
    ],
)
def test_mistakes_are_4xx_with_the_reason(served: Served, route: str, body: dict[str, Any], status: int, words: str) -> None:
    answer = served.post(route, body)
    assert answer.status_code == status
    assert words in shaped(route, answer)


def test_an_error_names_no_more_mistakes_than_anyone_reads(served: Served) -> None:
    questions = {str(i): {"type": "choice", "criteria": {str(j): 1 for j in range(255)}} for i in range(100)}
    answer = served.post("/v1/systemone", system_one(questions))
    assert answer.status_code == 422
    assert len(answer.json()["detail"]) == 20


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/nothing", {}, 404),
        ("GET", "/v1/systemone", {}, 405),
        ("DELETE", "/v1/decisions", {}, 405),
        ("POST", "/v1/systemone", {"content-type": "text/plain"}, 415),
        ("POST", "/v1/systemone", {"content-type": "multipart/form-data; boundary=x"}, 422),
        ("POST", "/v1/decisions", {"content-type": "application/json", "content-encoding": "br"}, 415),
        ("POST", "/v1/decide", {"content-type": "application/json", "content-encoding": "zstd"}, 400),
    ],
)
def test_other_errors_are_json_too(served: Served, method: str, path: str, headers: dict[str, str], status: int) -> None:
    answer = httpx.request(method, served.url + path, content=b"x" if method == "POST" else None, headers=headers)
    assert answer.status_code == status
    assert shaped(path, answer)
    assert status != 405 or answer.headers["allow"] == "POST"


# ---- keys, pages, metrics ----


@pytest.fixture(scope="module")
def locked(tokenizer: PreTrainedTokenizerFast) -> Iterator[Served]:
    with serving(roomy_engine(tokenizer), key="s3cret-ü") as found:
        yield found


@pytest.mark.parametrize("shown", [None, "", "Bearer", "Bearer wrong", "s3cret-ü", "Basic s3cret-ü", "Bearer s3cret-ü2"])
def test_a_missing_or_wrong_key_is_401(locked: Served, shown: str | None) -> None:
    headers = {} if shown is None else {"authorization": shown.encode()}
    for route, body in BODIES.items():
        answer = httpx.post(locked.url + route, json=body, headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "key" in shaped(route, answer)
    for path in ("/metrics", "/v1/models", "/nothing"):
        assert httpx.get(locked.url + path, headers=headers).status_code == 401  # type: ignore[arg-type]


def test_the_key_opens_and_some_pages_need_none(locked: Served) -> None:
    headers = {"authorization": "bearer s3cret-ü".encode()}
    assert httpx.post(locked.url + "/v1/systemone", json=system_one(), headers=headers).status_code == 200  # type: ignore[arg-type]
    assert httpx.get(locked.url + "/metrics", headers=headers).status_code == 200  # type: ignore[arg-type]
    for path in ("/", "/health", "/docs", "/openapi.json"):
        assert httpx.get(locked.url + path).status_code == 200


def test_without_a_key_any_that_is_shown_is_ignored(served: Served) -> None:
    assert served.post("/v1/systemone", system_one(), headers={"authorization": "Bearer any"}).status_code == 200


def test_the_page_may_run_itself_and_nothing_else(served: Served) -> None:
    answer = httpx.get(served.url + "/")
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert policy == content_policy(answer.text)
    made = content_policy("<style>a{}</style><script type=module>1\n</script>")
    digest = b64encode(hashlib.sha256(b"1\n").digest()).decode()
    assert f"script-src 'sha256-{digest}';" in made


def test_the_description_names_every_route(served: Served) -> None:
    found = httpx.get(served.url + "/openapi.json").json()
    assert set(found["paths"]) == {"/v1/systemone", "/v1/decisions", "/v1/decide", "/v1/models", "/health", "/metrics"}


def test_metrics_count_requests_and_tell_what_the_worker_does(served: Served) -> None:
    served.post("/v1/systemone", system_one())
    httpx.get(f"{served.url}/v1/secret-path")
    text = httpx.get(served.url + "/metrics").text
    assert re.search(r'rlcd_lite_requests_total{route="/v1/systemone",status="200"} [1-9]', text)
    assert re.search(r'rlcd_lite_requests_total{route="other",status="404"} [1-9]', text)
    assert re.search(r'rlcd_lite_request_seconds_bucket{le="0.1",route="/v1/systemone"} \d', text)
    assert re.search(r"rlcd_lite_worker_batches_total [1-9]", text)
    assert "rlcd_lite_worker_alive 1.0" in text
    assert "secret-path" not in text


def test_health_says_whether_requests_are_answered(tokenizer: PreTrainedTokenizerFast) -> None:
    with serving(roomy_engine(tokenizer)) as found:
        assert httpx.get(found.url + "/health").json() | {"version": ""} == {
            "status": "ok", "model": NAME, "version": "", "waiting": 0, "running": 0
        }  # fmt: skip
        _close(found)
        answer = httpx.get(found.url + "/health")
        assert answer.status_code == 503
        stopped = found.post("/v1/systemone", system_one())
        assert stopped.status_code == 503
        assert stopped.headers["retry-after"] == "1"
        assert "shutting down" in shaped("/v1/systemone", stopped)


def _close(found: Served) -> None:
    import asyncio

    asyncio.run(found.worker.close())


# ---- time ----


@contextmanager
def held_up(engine: DecisionEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The engine waits with every pass until the event is set."""
    go, ask = threading.Event(), engine.ask

    def slow(*args: Any, **more: Any) -> Any:
        assert go.wait(30)
        return ask(*args, **more)

    monkeypatch.setattr(engine, "ask", slow)
    try:
        yield go
    finally:
        go.set()


def send(found: Served, body: dict[str, Any], sent: int | None = None, key: str = "any") -> socket.socket:
    """A connection over which a request was sent, or its first bytes."""
    raw = json.dumps(body).encode()
    about = f"content-type: application/json\r\ncontent-length: {len(raw)}\r\nauthorization: Bearer {key}"
    head = f"POST /v1/systemone HTTP/1.1\r\nhost: x\r\n{about}\r\n\r\n"
    connection = socket.create_connection(found.address(), timeout=10)
    connection.sendall((head.encode() + raw)[:sent])
    return connection


def until(condition: Any) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_client_that_goes_away_takes_its_work_out_of_the_queue(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(roomy_engine(tokenizer)) as found, held_up(found.engine, monkeypatch) as go:
        caplog.set_level(logging.INFO, "rlcd_lite.serve")
        first = send(found, system_one())
        until(lambda: found.worker.state().running)
        second = send(found, system_one())
        until(lambda: found.worker.state().waiting)
        second.close()
        until(lambda: not found.worker.state().waiting)
        assert found.worker.state().dropped == 1
        until(lambda: " 499 " in caplog.text)
        go.set()
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 200")
        first.close()


def test_overload_is_refused_at_once_and_says_when_to_come_again(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(waiting_requests=1, timeout_s=0.5)
    with serving(roomy_engine(tokenizer), limits=limits) as found, held_up(found.engine, monkeypatch):
        connections = [send(found, system_one())]
        until(lambda: found.worker.state().running)
        connections.append(send(found, system_one()))
        until(lambda: found.worker.state().waiting)
        for route, body in BODIES.items():
            start = time.perf_counter()
            answer = found.post(route, body)
            assert time.perf_counter() - start < 0.5
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert int(answer.headers["retry-after-ms"]) >= 1
            assert "waiting" in shaped(route, answer)
        late = connections[0].recv(1 << 16)  # the one that runs was not answered in time
        assert late.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in late
        for connection in connections:
            connection.close()


def test_a_body_that_takes_too_long_is_408(tokenizer: PreTrainedTokenizerFast) -> None:
    with serving(roomy_engine(tokenizer), bodies=BodyLimits(seconds=0.2)) as found:
        connection = send(found, system_one(), sent=180)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 408")
        connection.close()
        assert found.post("/v1/systemone", system_one()).status_code == 200


def test_a_failure_is_500_and_its_log_has_no_text(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(roomy_engine(tokenizer)) as found:
        caplog.set_level(logging.INFO, "rlcd_lite.serve")

        def broken(*args: Any, **more: Any) -> Any:
            raise RuntimeError(f"over the text {STATE}")

        assert found.post("/v1/systemone", system_one()).status_code == 200
        monkeypatch.setattr(found.engine, "ask", broken)
        for route, body in BODIES.items():
            answer = found.post(route, body)
            assert answer.status_code == 500
            assert answer.headers["x-request-id"] in shaped(route, answer)
            assert STATE not in answer.text
        assert "RuntimeError" in caplog.text
        assert (
            found.post(
                "/v1/systemone", system_one({"SECRET": {"type": "choice", "criteria": {" ": None, "SECRET": None}}})
            ).status_code
            == 422
        )
        assert "charged" not in caplog.text
        assert "SECRET" not in caplog.text
        assert re.search(r"req_\w+ POST /v1/systemone 200 \d+ B in \d+ B out \d+\.\d ms", caplog.text)


# ---- calibrated ----


QUESTION = {"type": "choice", "instructions": "Team?", "criteria": {"Billing": None, "Sales": None}}


@pytest.fixture(scope="module")
def calibrated(tokenizer: PreTrainedTokenizerFast) -> Iterator[Served]:
    """A server with a calibration of one question."""
    engine = roomy_engine(tokenizer)
    _, (schema,) = systemone.ask(systemone.SystemOneRequest.model_validate(system_one({"q": QUESTION})))
    rng = np.random.default_rng(0)

    def rows(split: str) -> list[DecisionRow]:
        out = []
        for i in range(300):
            z = np.array([rng.normal() * 2, 0.0])
            label = int(rng.random() > 1 / (1 + np.exp(-z[0])))
            logits = tuple(np.float32(3 * z).tolist())
            out.append(DecisionRow(split, f"{split}-{i}", "answer", label, logits, (0.0,) * 5, (0.1, 0.3, 0.5, 0.7, 0.9), 1.0))
        return out

    fit, held = rows("fit"), rows("held-out")
    fields = calibrated_fields(fit, held, {row.example: schema for row in fit + held}, ["answer"], "enforce")
    calibration = Calibration.model_validate(
        {
            "version": 2,
            "made_by": engine.made_by(),
            "dataset": "toy",
            "asked": dict(asked(schema)),
            "varying": False,
            "tied": tied(schema),
            "consistency": "enforce",
            "rows": 300,
            "held_out_rows": 300,
            "fields": fields,
        }
    )
    with serving(engine, calibrations=[calibration]) as found:
        yield found


def test_a_calibrated_question_says_so_and_others_that_they_are_not(calibrated: Served) -> None:
    said = calibrated.post("/v1/systemone", system_one({"q": QUESTION, "other": QUESTIONS["refund"]})).json()["answers"]
    about = said["q"]["x_calibration"]
    assert about["applied"]
    assert about["rows"] == 300
    assert set(about["held_out"]["ece"]) == {"estimate", "low", "high", "null_floor"}
    assert 0 <= said["q"]["x_confidence"] <= 1
    assert said["other"]["x_calibration"] == {"applied": False}
    assert "x_confidence" not in said["other"]


def test_what_can_be_promised_is_kept_on_every_wire(calibrated: Served) -> None:
    """At a risk of a half every answer is automated, at one in a million none."""
    for risk, action in ((0.5, "automate"), (1e-6, "review")):
        one = calibrated.post("/v1/systemone", system_one({"q": QUESTION}, x_max_risk=risk, x_sets=0.1)).json()["answers"]["q"]
        assert one["x_action"] == action
        assert set(one["x_set"]) <= {"Billing", "Sales"}
        assert ("x_reason" in one) == (action == "review")
        question = {"type": "choice", "instructions": "Team?", "choices": [{"value": "Billing"}, {"value": "Sales"}]}
        (two,) = calibrated.post("/v1/decisions", decisions([question], x_max_risk=risk)).json()["answers"]
        assert two["type"] == ("choice" if action == "automate" else "refusal")
        assert two.get("x_reason") == one.get("x_reason")
        schema = {"fields": [{"name": "answer", "type": "choice", "description": "Team?", "options": ["Billing", "Sales"]}]}
        three = calibrated.post("/v1/decide", {"context": STATE, "schema": schema, "max_risk": risk}).json()
        assert three["fields"]["answer"]["action"] == action
        assert three["notes"] == ([] if action == "automate" else [f"for review: {one['x_reason']}"])
        assert three["fields"]["answer"]["confidence"] == one["x_confidence"]


def test_what_cannot_be_promised_is_for_review_or_refused(calibrated: Served) -> None:
    one = calibrated.post("/v1/systemone", system_one(x_max_risk=0.5)).json()["answers"]["refund"]
    assert one["x_action"] == "review"
    assert "no calibration was fitted" in one["x_reason"]
    two = calibrated.post("/v1/decisions", decisions(x_max_risk=0.5)).json()["answers"]
    assert [answer["type"] for answer in two] == ["refusal"] * 3
    assert "no calibration was fitted" in two[0]["x_reason"]
    sets_alone = calibrated.post("/v1/decisions", decisions(x_sets=0.1)).json()["answers"][0]
    assert sets_alone["type"] == "predicate"
    assert "no calibration was fitted" in sets_alone["x_reason"]


# ---- the command ----


def test_the_command_says_what_is_wrong_before_it_loads_a_model(run_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = f"port {port} of '127.0.0.1' can't be listened on (Address already in use): give another --port or --host."
        assert run_command("serve", "--port", port) == (2, "", f"error: {said}\n")
    for flags, words in (
        (["--port", "70000"], "--port is 70000"),
        (["--timeout", "0"], "--timeout is 0"),
        (["--waiting-requests", "0"], "--waiting-requests is 0"),
        (["--host", "no such host"], "--host 'no such host'"),
        (["--prior", "contexts"], "--prior contexts"),
        (["--calibration", "/nowhere.json", "--port", "0"], "does not exist"),
        (["--permutations", "99"], "--permutations is 99"),
    ):
        code, out, err = run_command("serve", *flags)
        assert (code, out) == (2, "")
        assert words in err
    monkeypatch.setenv("RLCD_API_KEY", " ")
    assert "RLCD_API_KEY is blank" in run_command("serve")[2]
    monkeypatch.delenv("RLCD_API_KEY")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'rlcd-lite[serve]'" in run_command("serve")[2]


def test_the_command_serves_until_it_is_asked_to_end_and_finishes_what_it_accepted(model_folder: Path) -> None:
    command = [sys.executable, "-m", "rlcd_lite", "serve", "--model", str(model_folder), "--port", "0"]
    environment = os.environ | {"RLCD_API_KEY": "k", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        ready = process.stderr.readline()
        match = re.match(r"(\S+) answers on (http://127\.0\.0\.1:\d+) ", ready)
        assert match is not None, ready
        name, url = match.groups()
        assert re.fullmatch(r"tiny-llama@[0-9a-f]{8}", name)
        headers = {"authorization": "Bearer k"}
        with ThreadPoolExecutor(8) as pool:
            answers = [
                pool.submit(httpx.post, url + "/v1/systemone", json=system_one(), headers=headers, timeout=60) for _ in range(8)
            ]
            until(lambda: httpx.get(url + "/metrics", headers=headers).text.count("worker_waiting 0.0") == 0 or answers[0].done())
            process.send_signal(signal.SIGTERM)
            assert {answer.result().status_code for answer in answers} == {200}
        assert process.wait(20) == 0
        assert process.stderr.read().endswith("stopped.\n")


def test_a_calibration_of_another_engine_is_refused(tokenizer: PreTrainedTokenizerFast, calibrated: Served) -> None:
    (calibration,) = calibrated.worker._calibrations.values()
    other = calibration.model_copy(update={"made_by": calibration.made_by | {"layout": "schema-first"}})
    with pytest.raises(UserError, match="layout"), serving(roomy_engine(tokenizer), calibrations=[other]):
        pass


def test_a_schema_is_answered_by_the_form_that_it_is_written_in(served: Served) -> None:
    schema = {"properties": {"ok": {"type": "boolean"}, "n": {"type": "object", "properties": {"v": {"enum": ["a", "b"]}}}}}
    said = served.post("/v1/decide", {"context": STATE, "schema": schema}).json()
    assert set(said["decision"]) == {"ok", "n"}
    assert set(said["fields"]) == {"ok", "n.v"}
