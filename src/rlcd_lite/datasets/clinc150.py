"""CLINC150: intents of a voice assistant's users over ten domains, and out-of-scope requests (Larson et al. 2019, D19-1131).

`clinc150` has the intent alone, 150 and `oos`; `clinc150:domains` has the domain before it (out-of-scope requests have no domain
in the set: here theirs is `oos`, so that the two fields agree); `clinc150:in-scope` leaves out-of-scope requests and their
options out; `clinc150:none` asks for them as none of the above, and `clinc150:hierarchy` groups the intents by domain. Variants may
be joined (`clinc150:in-scope,domains`), but for `none` and `in-scope`. The local file is `data_oos_plus.json.gz`, with 250
out-of-scope train rows, because that is what the hub's configuration `plus` holds (`data_full.json` has 100 others, on no hub).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rlcd_lite.datasets.sources import NamedSet, field_sizes, hub_table, local_text
from rlcd_lite.datasets.splits import Row
from rlcd_lite.errors import UserError
from rlcd_lite.schema import NONE_OF_THE_ABOVE, Field, Group, Option, Schema, Value

OOS = "oos"
DOMAINS = {
    "banking": """
        freeze_account routing pin_change bill_due pay_bill account_blocked interest_rate min_payment bill_balance
        transfer order_checks balance spending_history transactions report_fraud
    """,
    "credit_cards": """
        replacement_card_duration expiration_date damaged_card improve_credit_score report_lost_card card_declined
        credit_limit_change apr redeem_rewards credit_limit rewards_balance application_status credit_score new_card
        international_fees
    """,
    "kitchen_and_dining": """
        food_last confirm_reservation how_busy ingredients_list calories nutrition_info recipe restaurant_reviews
        restaurant_reservation meal_suggestion restaurant_suggestion cancel_reservation ingredient_substitution
        cook_time accept_reservations
    """,
    "home": """
        what_song play_music todo_list_update reminder reminder_update calendar_update order_status update_playlist
        shopping_list calendar next_song order todo_list shopping_list_update smart_home
    """,
    "auto_and_commute": """
        current_location oil_change_when oil_change_how uber traffic tire_pressure schedule_maintenance gas mpg distance
        directions last_maintenance gas_type tire_change jump_start
    """,
    "travel": """
        plug_type travel_notification translate flight_status international_visa timezone exchange_rate
        travel_suggestion travel_alert vaccines lost_luggage book_flight book_hotel carry_on car_rental
    """,
    "utility": """
        weather alarm date find_phone share_location timer make_call calculator definition measurement_conversion
        flip_coin spelling time roll_dice text
    """,
    "work": """
        pto_request_status next_holiday insurance_change insurance meeting_schedule payday taxes income rollover_401k
        pto_balance pto_request w2 schedule_meeting direct_deposit pto_used
    """,
    "small_talk": """
        who_made_you meaning_of_life who_do_you_work_for do_you_have_pets what_are_your_hobbies fun_fact
        what_is_your_name where_are_you_from goodbye thank_you greeting tell_joke are_you_a_bot how_old_are_you
        what_can_i_ask_you
    """,
    "meta": """
        change_speed user_name whisper_mode yes change_volume no change_language repeat change_accent cancel sync_device
        change_user_name change_ai_name reset_settings maybe
    """,
}
DOMAIN_OF = {intent: domain for domain, intents in DOMAINS.items() for intent in intents.split()} | {OOS: OOS}
PARTS = {"train": "train", "val": "validation", "test": "test"}


def schema(variants: tuple[str, ...]) -> Schema:
    """The intent field as the variants say."""
    if "none" in variants and "in-scope" in variants:
        raise UserError("data set 'clinc150' has no requests for none once in-scope leaves them out: drop one of the two.")
    intents = [i for i in DOMAIN_OF if i != OOS or "in-scope" not in variants]
    domains = dict.fromkeys(DOMAIN_OF[i] for i in intents)
    options = tuple(Option(i) for i in intents)
    groups: tuple[Group, ...] = ()
    none = "none" in variants
    if none:
        options = (*options[:-1], Option(NONE_OF_THE_ABOVE, "no other option fits"))
    if "hierarchy" in variants:
        names = [domain for domain in domains if not (none and domain == OOS)]
        groups = tuple(Group(name, sum(DOMAIN_OF[i] == name for i in intents)) for name in names)
    fields = [Field("intent", "choice", options, "What the user wants.", hierarchy=groups, none_of_the_above=none)]
    if "domains" in variants:
        fields.insert(0, Field("domain", "choice", tuple(Option(d) for d in domains), "What the request is about."))
    return Schema(tuple(fields))


def local(folder: Path, variants: tuple[str, ...]) -> Iterator[Row]:
    items = json.loads(local_text(folder / "data_oos_plus.json.gz"))
    rows = ((part, text, intent) for key, part in PARTS.items() for text, intent in items[key] + items[f"oos_{key}"])
    return _rows(rows, variants)


def hub(variants: tuple[str, ...]) -> Iterator[Row]:
    return _rows(_hub_rows(), variants)


def _hub_rows() -> Iterator[tuple[str, str, str]]:
    for part in PARTS.values():
        table = hub_table("clinc150", SET.hub_id, "plus", part)
        names = table.features["intent"].names
        for item in table:
            yield part, item["text"], names[item["intent"]]


def _rows(rows: Iterator[tuple[str, str, str]], variants: tuple[str, ...]) -> Iterator[Row]:
    shared = schema(variants)
    for part, text, intent in rows:
        if intent == OOS and "in-scope" in variants:
            continue
        labels: dict[str, Value] = {"domain": DOMAIN_OF[intent]} if "domains" in variants else {}
        asked = NONE_OF_THE_ABOVE if "none" in variants and intent == OOS else intent
        yield Row(part, text.strip(), shared, labels | {"intent": asked})


SET = NamedSet(
    name="clinc150",
    about="intents of a voice assistant's users, with out-of-scope",
    source="Larson et al. 2019",
    licence="CC BY 3.0",
    fields=field_sizes(schema(())),
    variants=("in-scope", "domains", "none", "hierarchy"),
    hub_id="clinc/clinc_oos",
    local=local,
    hub=hub,
    shares={"train": {"train": 1.0}, "validation": {"calibration": 1.0}, "test": {"test": 1.0}},
    rows={"train": 15_239, "calibration": 3098, "test": 5500},
)
