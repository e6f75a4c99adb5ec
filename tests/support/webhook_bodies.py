"""Bodies of webhooks, as the platforms send them, that only tests send."""

import time

from message_buffer.json_object import Json


def meta(platform: str, *events: Json, account: str, user: str) -> Json:
    """Return the body of a Messenger or Instagram webhook: these events, with sender and recipient added."""
    common = {"sender": {"id": user}, "recipient": {"id": account}, "timestamp": int(time.time() * 1_000)}
    entry = {"id": account, "time": int(time.time() * 1_000), "messaging": [common | event for event in events]}
    return {"object": "page" if platform == "messenger" else platform, "entry": [entry]}


def twilio_message(message_sid: str, text: str, *, sender: str, to: str = "+15558675310") -> dict[str, str]:
    """Return the fields of Twilio's form. For WhatsApp, pass both numbers with the prefix `whatsapp:`."""
    return {"MessageSid": message_sid, "From": sender, "To": to, "Body": text, "NumMedia": "0", "SmsStatus": "received"}


def telegram_message(message_id: int, text: str, *, user: int, chat: Json | None = None, edited: bool = False) -> Json:
    """Return a Telegram update. It comes from a private chat with the user, unless `chat` is given."""
    message: Json = {
        "message_id": message_id,
        "from": {"id": user, "is_bot": False, "first_name": "Ada"},
        "chat": chat or {"id": user, "type": "private", "first_name": "Ada"},
        "date": int(time.time()),
        "text": text,
    }
    if edited:
        return {"update_id": message_id, "edited_message": message | {"edit_date": int(time.time())}}
    return {"update_id": message_id, "message": message}
