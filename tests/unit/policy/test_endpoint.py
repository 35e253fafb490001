"""Which server is asked, and that a key only travels to the server it was set for."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.errors import ConfigError, PrerequisiteError
from selective_rollout.policy import Endpoint
from selective_rollout.policy.endpoint import DEFAULT_BASE_URL

OWN, VLLM, OPENAI = "http://own:1/v1", "http://vllm:2/v1", "http://proxy:3/v1"
FULL = {
    "SELECTIVE_ROLLOUT_BASE_URL": OWN,
    "SELECTIVE_ROLLOUT_API_KEY": "sk-own",
    "SELECTIVE_ROLLOUT_MODEL": "own-model",
    "SELECTIVE_ROLLOUT_ORGANIZATION": "own-org",
    "VLLM_BASE_URL": VLLM,
    "VLLM_API_KEY": "sk-vllm",
    "VLLM_MODEL": "vllm-model",
    "OPENAI_BASE_URL": OPENAI,
    "OPENAI_API_KEY": "sk-openai",
    "OPENAI_MODEL": "openai-model",
    "OPENAI_ORG_ID": "openai-org",
}


def without(*prefixes):
    return {name: value for name, value in FULL.items() if not name.startswith(prefixes)}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (FULL, (OWN, "sk-own", "own-model", "own-org")),
        (without("SELECTIVE"), (VLLM, "sk-vllm", "vllm-model", None)),
        (without("SELECTIVE", "VLLM"), (OPENAI, "sk-openai", "openai-model", "openai-org")),
        (without("SELECTIVE", "VLLM_API_KEY"), (VLLM, "EMPTY", "vllm-model", None)),
        (without("SELECTIVE", "VLLM", "OPENAI_API_KEY"), (OPENAI, "EMPTY", "openai-model", "openai-org")),
        ({"OPENAI_API_KEY": "sk-openai"}, (DEFAULT_BASE_URL, "sk-openai", None, None)),
        ({"VLLM_BASE_URL": VLLM, "OPENAI_API_KEY": "sk-openai"}, (VLLM, "EMPTY", None, None)),
    ],
)
def test_families_are_tried_in_order(env, expected):
    found = Endpoint.resolve(env=env)
    assert (found.base_url, found.api_key, found.model, found.organization) == expected


def test_arguments_win_over_the_environment():
    found = Endpoint.resolve("http://arg:9/v1/", " sk-arg\n", "arg-model", "arg-org", env=FULL)
    assert (found.base_url, found.api_key) == ("http://arg:9/v1", "sk-arg")
    assert (found.model, found.organization) == ("arg-model", "arg-org")
    assert (found.base_url_from, found.api_key_from) == ("base_url", "api_key")


@pytest.mark.parametrize(
    ("base_url", "key"),
    [
        ("http://elsewhere:9/v1", "EMPTY"),
        ("http://vllm:2/other/v1", "sk-vllm"),
        (OPENAI, "sk-openai"),
        (DEFAULT_BASE_URL, "sk-openai"),
        ("https://api.openai.com:443/v1", "sk-openai"),
        ("http://api.openai.com/v1", "EMPTY"),
        ("https://api.openai.com.evil.example/v1", "EMPTY"),
        (OWN, "sk-own"),
    ],
)
def test_a_given_address_only_gets_the_key_of_its_own_server(base_url, key):
    assert Endpoint.resolve(base_url, env=FULL).api_key == key


def test_our_own_key_goes_to_any_address_unless_it_is_tied_to_one():
    assert Endpoint.resolve("http://a/v1", env={"SELECTIVE_ROLLOUT_API_KEY": "sk-own"}).api_key == "sk-own"
    assert Endpoint.resolve("http://a/v1", env=FULL).api_key == "EMPTY"


@given(
    st.dictionaries(st.sampled_from(sorted(FULL)), st.just(None)),
    st.sampled_from([None, "http://elsewhere:9/v1", OWN, VLLM, OPENAI, DEFAULT_BASE_URL]),
)
@settings(max_examples=150, deadline=None)
def test_no_subset_of_variables_sends_a_key_to_a_stranger(names, base_url):
    env = {name: FULL[name] for name in names}
    try:
        found = Endpoint.resolve(base_url, env=env)
    except PrerequisiteError:
        return
    allowed = {
        "sk-own": found.base_url == env.get("SELECTIVE_ROLLOUT_BASE_URL", found.base_url),
        "sk-vllm": found.base_url == env.get("VLLM_BASE_URL"),
        "sk-openai": found.base_url in (env.get("OPENAI_BASE_URL"), DEFAULT_BASE_URL),
        "EMPTY": True,
    }
    assert allowed[found.api_key]


def test_blank_variables_count_as_unset():
    assert Endpoint.resolve(env={"SELECTIVE_ROLLOUT_BASE_URL": " ", "VLLM_BASE_URL": VLLM}).base_url == VLLM


def test_a_missing_endpoint_says_what_to_set():
    with pytest.raises(PrerequisiteError, match="set SELECTIVE_ROLLOUT_BASE_URL"):
        Endpoint.resolve(env={})
    with pytest.raises(PrerequisiteError, match="no model endpoint"):
        Endpoint.resolve(api_key="sk-x", env={})
    with pytest.raises(
        PrerequisiteError, match=r"no API key for https://api\.openai\.com/v1: set OPENAI_API_KEY"
    ):
        Endpoint.resolve(DEFAULT_BASE_URL, env={})


@pytest.mark.parametrize(
    "base_url",
    [
        "localhost:8000/v1",
        "ftp://h/v1",
        "http://",
        "http://h:port/v1",
        "http://h h/v1",
        "h",
        "http://[::1/v1",
    ],
)
def test_an_unusable_address_is_named(base_url):
    with pytest.raises(ConfigError, match=r"expected an address such as http://host:8000/v1"):
        Endpoint.resolve(base_url, env={})


@pytest.mark.parametrize("base_url", ["http://h/v1?a=b", "http://h/v1#x", "http://h/v1/chat/completions"])
def test_an_address_that_goes_too_far_is_refused(base_url):
    with pytest.raises(ConfigError, match="should end in /v1"):
        Endpoint(base_url=base_url)


def test_the_source_of_a_bad_address_is_named():
    with pytest.raises(ConfigError, match=r"^VLLM_BASE_URL: "):
        Endpoint.resolve(env={"VLLM_BASE_URL": "host:8000"})


def test_secrets_are_never_shown():
    assert "sk-own" not in repr(Endpoint.resolve(env=FULL))
    for attempt in (
        lambda: Endpoint(base_url="http://user:hunter2@h/v1"),
        lambda: Endpoint(base_url=OWN, api_key="hunter2\nx"),
        lambda: Endpoint(base_url=OWN, api_key="hunter2ü"),
    ):
        with pytest.raises(ConfigError) as error:
            attempt()
        assert "hunter2" not in str(error.value)


def test_a_key_is_removed_from_a_text():
    assert Endpoint(base_url=OWN, api_key="sk-own").redact("bad key sk-own!") == "bad key ***!"
    assert Endpoint(base_url=OWN).redact("an EMPTY list") == "an EMPTY list"


def test_an_endpoint_pickles():
    endpoint = Endpoint.resolve(env=FULL)
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("base_url", "root_url"),
    [
        ("http://h:8000/v1", "http://h:8000"),
        ("http://h:8000/v1/", "http://h:8000"),
        ("http://h/llm/v1", "http://h/llm"),
        ("http://h/llm", "http://h/llm"),
    ],
)
def test_what_is_not_openai_s_lives_beside_the_api(base_url, root_url):
    assert Endpoint(base_url=base_url).root_url == root_url
