"""Twilio's own library judges our check of its signatures."""

from urllib.parse import urlencode

from hypothesis import given
from hypothesis import strategies as st
from twilio.request_validator import RequestValidator

from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import Credentials, Webhook

TOKEN = "12345"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FORMS = st.lists(st.tuples(TEXTS.filter(bool), TEXTS), max_size=8)
HOSTS = st.sampled_from(["hooks.example.com", "hooks.example.com:443", "hooks.example.com:8443", "abc.execute-api.aws"])
QUERIES = st.sampled_from(["", "?shop=1", "?a=b%20c&a=d"])
# The form that was sent is the form that was signed, or nearly.
PAIRS = st.one_of(
    st.tuples(FORMS, FORMS),
    FORMS.map(lambda form: (form, form)),
    FORMS.map(lambda form: (form, form[::-1])),
    FORMS.map(lambda form: (form, form + form[:1])),
    FORMS.map(lambda form: (form, form[1:])),
)
URLS = st.builds(lambda host, query: f"https://{host}/webhook/twilio{query}", HOSTS, QUERIES)


class Fields(dict[str, str]):
    """A form as web frameworks pass it to the library."""

    def __init__(self, form: list[tuple[str, str]]) -> None:
        super().__init__(form)
        self._form = form

    def getlist(self, name: str) -> list[str]:
        return [value for given_name, value in self._form if given_name == name]


def is_authentic(form: list[tuple[str, str]], url: str, signature: str) -> bool:
    headers = {"content-type": "application/x-www-form-urlencoded", "x-twilio-signature": signature}
    webhook = Webhook("POST", url, headers, {}, urlencode(form).encode())
    return PLATFORMS["twilio"].authenticate(webhook, Credentials((TOKEN,))) is not None


@given(form=FORMS, url=URLS)
def test_what_twilios_library_signs_is_authentic(form: list[tuple[str, str]], url: str) -> None:
    signature = RequestValidator(TOKEN).compute_signature(url, Fields(form))
    assert is_authentic(form, url, signature)
    assert not is_authentic(form, url, RequestValidator("another").compute_signature(url, Fields(form)))


@given(forms=PAIRS, signed_url=URLS, url=URLS)
def test_what_twilios_library_says_of_any_other_request_is_what_we_say(
    forms: tuple[list[tuple[str, str]], list[tuple[str, str]]], signed_url: str, url: str
) -> None:
    library, (signed, sent) = RequestValidator(TOKEN), forms
    signature = library.compute_signature(signed_url, Fields(signed))
    for called in (signed_url, url):
        assert is_authentic(sent, called, signature) == library.validate(called, Fields(sent), signature), called
