"""The words of the synthetic tickets: clauses without a full stop, `{slots}` filled at random.

A clause stands in one list only, so a ticket's text says which cues it holds. STRONG cues state the thing; WEAK cues only hint.
Cues of a team say nothing of how bad it is, cues of a severity say nothing of whose work it is, and neither says whether a person
must answer.
"""

from __future__ import annotations

from types import MappingProxyType

TEAM_STRONG = {
    "billing": (
        "the {month} invoice shows {amount} euros instead of what we agreed",
        "we were charged twice for {product} in {month}",
        "the refund of {amount} euros for {month} has not arrived",
        "our VAT number is missing from invoice {number}",
        "the discount for {seats} seats was not applied to the bill",
        "the receipt for {month} has the old company name on it",
        "the credit note over {amount} euros is booked to the wrong subscription",
        "our payment card was billed although we cancelled {product} in {month}",
        "the renewal price of {product} differs from the quote by {amount} euros",
        "the purchase order {number} is not printed on the invoice",
        "the bank rejected the direct debit for {month}",
        "the statement lists {seats} seats although we pay for fewer",
        "the tax rate on the {month} bill is the one of another country",
        "the prepaid balance of {amount} euros disappeared from our account statement",
    ),
    "auth": (
        "the password reset mail for {product} never arrives",
        "the two-factor code is refused for user {number}",
        "single sign-on sends us back to the login page",
        "my colleague in {city} is locked out after changing his password",
        "the login to {product} says that the token has expired",
        "our new administrator has no permission to open {product}",
        "the invitation link for {seats} new users is said to be invalid",
        "the session ends after {minutes} minutes and asks for credentials again",
        "the SAML certificate that we uploaded in {month} is not accepted",
        "the API key with the ending {number} returns 401",
        "the authenticator app can't be paired with a new phone",
        "the role that we gave to the {city} office does not let them sign in",
        "the account recovery questions are rejected for user {number}",
        "logging in with a passkey fails since {month}",
    ),
    "infra": (
        "the {region} cluster does not answer health checks",
        "the database replica in {region} lags by {minutes} minutes",
        "requests to the {region} endpoint end with status 503",
        "the nightly backup of {product} has stopped since {month}",
        "the disk of node {number} in {region} is full",
        "the message queue of {product} holds {number} jobs and drains slowly",
        "DNS for our {region} host name does not resolve",
        "the latency from {city} to {region} has risen to {number} milliseconds",
        "the storage volume of {product} is mounted read-only",
        "the load balancer in {region} drops connections after {minutes} minutes",
        "the container of {product} restarts every {minutes} minutes",
        "the TLS handshake with the {region} gateway times out",
        "the scheduled job {number} is not started by the server",
        "the memory of node {number} runs out within {minutes} minutes",
    ),
    "frontend": (
        "the chart on the {product} dashboard is drawn off the screen in {browser}",
        "the save button of the {product} form does not react in {browser}",
        "the drop-down for {month} covers the rest of the page",
        "dark mode shows black letters on a black background",
        "the date picker jumps back to {month} when I click on it",
        "the layout of the {product} page breaks on a phone",
        "the table of {product} can't be scrolled sideways in {browser}",
        "the icon next to {product} is replaced by an empty square",
        "the tooltip of the {product} menu stays on the screen",
        "the search box loses the cursor after every letter in {browser}",
        "the translated labels of the {product} page overlap each other",
        "the page title still says {month} after the view has changed",
        "the drag handle of the {product} board is invisible in {browser}",
        "the pop-up of {product} can't be closed with the keyboard",
    ),
}

TEAM_WEAK = {
    "billing": (
        "it may have to do with our last payment",
        "perhaps the subscription ran out",
        "I wonder whether the plan we pay for is the reason",
        "the finance department mentioned something similar",
        "it could be a matter of unpaid fees",
        "our accountant suspects the contract",
    ),
    "auth": (
        "it may have to do with access rights",
        "perhaps the sign-in is behind it",
        "I wonder whether a password policy is the reason",
        "somebody changed user roles around that time",
        "it could be a matter of identity checks",
        "our security officer suspects the permissions",
    ),
    "infra": (
        "it may have to do with a server",
        "perhaps the network is behind it",
        "I wonder whether the hosting is the reason",
        "there was maintenance in a data centre around that time",
        "it could be a matter of capacity",
        "our operations people suspect the machines",
    ),
    "frontend": (
        "it may have to do with how the page is displayed",
        "perhaps the browser is behind it",
        "I wonder whether the new design is the reason",
        "the screen layout was changed around that time",
        "it could be a matter of a stale web page",
        "our designer suspects the style sheet",
    ),
}

SEVERITY_STRONG = {
    "low": (
        "nobody is held up by this",
        "this is a small blemish",
        "we can live with it for months",
        "it bothers one person now and then",
        "work goes on exactly as before",
        "the effect on us is close to nothing",
        "it is a nuisance and no more than that",
        "only {seats} test accounts are touched by it and they are unused",
        "it costs us a few seconds a week",
        "we noticed it by accident and lose nothing through it",
    ),
    "medium": (
        "a few colleagues are slowed down by this",
        "one of our routines takes {minutes} minutes longer than it should",
        "some of our daily tasks need a detour",
        "a handful of users in {city} have to repeat a step",
        "part of a minor feature is out of use for us",
        "it costs two people an hour a day",
        "one small department works at half speed",
        "a side process has been delayed since {weekday}",
        "a report for internal use can't be finished",
        "we get by with manual steps that annoy people",
    ),
    "high": (
        "most of our office in {city} can't do their main work",
        "a deadline on {weekday} will be missed because of this",
        "an important feature has been unusable since {weekday}",
        "several of our clients have begun to complain",
        "a whole department has been idle since {weekday}",
        "we had to postpone a launch because of it",
        "the main process of our {city} branch is stuck",
        "orders pile up and have to be handled late",
        "large parts of our business are badly hampered",
        "dozens of employees are blocked by this",
    ),
    "critical": (
        "all of production is down",
        "every single customer of ours is cut off right now",
        "we are losing data with each minute",
        "our entire company has come to a standstill",
        "nothing at all works any more at any site",
        "customer records are exposed to the public at this moment",
        "the outage is total and worldwide",
        "emergency services depend on us and get nothing",
        "we lose {amount} euros a minute until this is solved",
        "patients can't be treated while this lasts",
    ),
}

SEVERITY_WEAK = {
    "low": (
        "there is no hurry from our side",
        "whenever it suits you is early enough",
        "the tone in our team about it is relaxed",
        "my manager shrugged when he heard of it",
        "we would put it at the bottom of the list",
    ),
    "medium": (
        "some time this week would be welcome",
        "the mood in our team about it is mixed",
        "my manager would like to be kept posted",
        "we would put it in the middle of the list",
        "it deserves a normal place in the queue",
    ),
    "high": (
        "we would be glad of an answer today",
        "the mood in our team about it is tense",
        "my manager asks about it every hour",
        "we would put it near the top of the list",
        "people here get impatient",
    ),
    "critical": (
        "it feels like an emergency to us",
        "the mood in our team about it is panic",
        "my manager has called everybody in from holiday",
        "we would drop everything else for it",
        "people here speak of a disaster",
    ),
}

CLEAR_FRAMES = ("{a}", "the facts: {a}", "to be exact, {a}", "I checked it myself: {a}", "as I can see here, {a}")
LEANING_FRAMES = ("{a}; then again, {b}", "{a}, though {b}", "{a}, even if {b}", "{a} (still, {b})", "{b}, but I see that {a}")
EVEN_FRAMES = (
    "there are two stories: {a}, and on the other hand {b}",
    "one log says that {a}, another says that {b}",
    "two of us disagree: {a}, or else {b}",
    "either {a} or {b}, the reports contradict each other",
)
HEARSAY_FRAMES = (
    "someone told me that {a}, which I could not verify",
    "according to a rumour, {a}",
    "I only heard from others that {a}",
    "a colleague claims that {a}, but I have not seen it",
    "reportedly {a}, without any proof so far",
)

FACTS = {
    "escalated": (
        "we have a premium contract with a personal contact",
        "this is the third time that I write about the same thing",
        "please have someone ring me on extension {number}",
        "your automatic answers did not help the last {few} times",
        "our contract {number} promises a reply by a specialist",
        "our lawyer has asked for a written statement",
        "I ask for a conversation with a member of your staff",
        "we are a public authority and must hear from a named person",
        "our key account manager told us to write here",
        "we will cancel the contract unless somebody speaks to us",
        "your assistant sent us round in circles {few} times",
        "I want to talk to a human being about it",
    ),
    "self-service": (
        "we are on the free plan and use the community forum",
        "your help page {number} already describes a way round it",
        "no reply is needed, I only want to let you know",
        "a link to the right manual page is all I need",
        "an automatic answer is fine for us",
        "we found a workaround in your knowledge base",
        "I have fixed it for now with the steps from article {number}",
        "please just add this to your statistics",
        "the chat assistant is already helping us with it",
        "we are on a trial account and still exploring",
        "I am happy with a standard reply",
        "it went away after I followed your online guide",
    ),
    "none": (
        "we are on the standard plan since {month}",
        "our workspace is called {company}",
        "we use {product} with {seats} seats",
        "we have been a customer for {few} years",
        "the reference on our side is {number}",
        "our office is in {city}",
        "we write on behalf of {company}",
        "it was first noted on a {weekday}",
        "this is about our {product} workspace",
        "our team has {seats} members",
        "the browser here is {browser}",
        "we work in the {region} region",
    ),
}

GREETINGS = (
    "Hello,", "Hi there,", "Good morning,", "Dear support team,", "Hi,", "Good afternoon,", "Dear all,", "Hello support,",
    "Greetings from {city}.", "{name} here.", "This is {name} of {company}.", "Hello from {company},",
)  # fmt: skip
BACKGROUNDS = (
    "I am writing about {product}.",
    "We rolled out {product} to {seats} people in {month}.",
    "Our team in {city} works with {product}.",
    "The machine here runs {browser}.",
    "We moved to the {region} region in {month}.",
    "{company} took over our department in {month}.",
    "I am new in this role and took over from {name}.",
    "The last change that we made was in {month}.",
    "{name} is copied on this message.",
    "We see this with {product} and with nothing else.",
    "It came up in our meeting on {weekday}.",
    "My predecessor {name} set up our workspace.",
    "Our internal number for this is {number}.",
    "We have read the release notes of {month}.",
)
CLOSINGS = (
    "Thanks, {name}", "Best regards, {name}", "Kind regards, {name} ({company})", "Cheers, {name}", "Thank you. {name}",
    "Many thanks in advance, {name}", "Yours, {name}", "{name}, {city}", "Regards, {name}, {company}", "With best wishes, {name}",
)  # fmt: skip

SLOTS = MappingProxyType(
    {
        "month": "January February March April May June July August September October November December".split(),
        "weekday": "Monday Tuesday Wednesday Thursday Friday".split(),
        "product": "Atlas Beacon Cobalt Delta Ember Falcon Granite Harbor Indigo Juniper Keystone Lumen Meridian Nimbus".split(),
        "browser": "Firefox Chrome Safari Edge Opera Vivaldi Brave".split(),
        "region": "eu-north eu-west us-east us-west ap-south sa-east af-south me-central".split(),
        "city": "Lisbon Oslo Turin Ghent Graz Lyon Porto Leeds Bergen Basel Malmo Cork Utrecht Gdansk Brno Tartu Seville".split(),
        "company": "Northwind Acorn Bluefin Cartwright Dunmore Eastgate Fairholm Greenlee Hartwell Ironbridge Kestrel".split(),
        "name": "Ana Ben Chloe Dario Elif Femi Greta Hugo Ines Jonas Kira Liam Mei Noor Otto Priya Quinn Rosa Sven Tara".split(),
        "few": "two three four five six".split(),
        "minutes": [str(i) for i in range(2, 60)],
        "seats": [str(i) for i in range(3, 90)],
        "amount": [str(i) for i in range(20, 900)],
        "number": [str(i) for i in range(1000, 9999)],
    }
)
