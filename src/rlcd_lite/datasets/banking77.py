"""Banking77: what a bank's customer wants, 77 intents (Casanueva et al. 2020, arXiv 2003.04807).

A tenth of the published train part is set aside for calibration. On the hub the set is read from a Parquet mirror, since the
original repository holds a loading script. Label names are the published ones, oddities included.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlcd_lite.datasets.sources import NamedSet, field_sizes, hub_table, local_csv
from rlcd_lite.datasets.splits import Row
from rlcd_lite.schema import Field, Option, Schema

INTENTS = tuple(
    """
    activate_my_card age_limit apple_pay_or_google_pay atm_support automatic_top_up
    balance_not_updated_after_bank_transfer balance_not_updated_after_cheque_or_cash_deposit beneficiary_not_allowed
    cancel_transfer card_about_to_expire card_acceptance card_arrival card_delivery_estimate card_linking
    card_not_working card_payment_fee_charged card_payment_not_recognised card_payment_wrong_exchange_rate
    card_swallowed cash_withdrawal_charge cash_withdrawal_not_recognised change_pin compromised_card
    contactless_not_working country_support declined_card_payment declined_cash_withdrawal declined_transfer
    direct_debit_payment_not_recognised disposable_card_limits edit_personal_details exchange_charge exchange_rate
    exchange_via_app extra_charge_on_statement failed_transfer fiat_currency_support get_disposable_virtual_card
    get_physical_card getting_spare_card getting_virtual_card lost_or_stolen_card lost_or_stolen_phone
    order_physical_card passcode_forgotten pending_card_payment pending_cash_withdrawal pending_top_up pending_transfer
    pin_blocked receiving_money Refund_not_showing_up request_refund reverted_card_payment?
    supported_cards_and_currencies terminate_account top_up_by_bank_transfer_charge top_up_by_card_charge
    top_up_by_cash_or_cheque top_up_failed top_up_limits top_up_reverted topping_up_by_card transaction_charged_twice
    transfer_fee_charged transfer_into_account transfer_not_received_by_recipient transfer_timing
    unable_to_verify_identity verify_my_identity verify_source_of_funds verify_top_up virtual_card_not_working
    visa_or_mastercard why_verify_identity wrong_amount_of_cash_received wrong_exchange_rate_for_cash_withdrawal
    """.split()
)
SCHEMA = Schema((Field("intent", "choice", tuple(Option(i) for i in INTENTS), "What the customer wants."),))
PARTS = ("train", "test")


def local(folder: Path, variants: tuple[str, ...]) -> Iterator[Row]:
    for part in PARTS:
        for text, intent in local_csv(folder / f"{part}.csv", columns=2)[1:]:
            yield _row(part, text, intent)


def hub(variants: tuple[str, ...]) -> Iterator[Row]:
    for part in PARTS:
        table = hub_table("banking77", SET.hub_id, "default", part)
        names = table.features["label"].names
        for item in table:
            yield _row(part, item["text"], names[item["label"]])


def _row(part: str, text: str, intent: str) -> Row:
    return Row(part, text.strip(), SCHEMA, {"intent": intent})


SET = NamedSet(
    name="banking77",
    about="intents of a bank's customers",
    source="Casanueva et al. 2020",
    licence="CC BY 4.0",
    fields=field_sizes(SCHEMA),
    variants=(),
    hub_id="legacy-datasets/banking77",
    local=local,
    hub=hub,
    shares={"train": {"train": 0.9, "calibration": 0.1}, "test": {"test": 1.0}},
    rows={"train": 9008, "calibration": 984, "test": 3080},
)
