"""Dialogues for training and evaluation, from a seed.

A question is everything before an answer, the whole rendered conversation. One whose hash
falls into the held-out tenth never occurs in training, not as an earlier turn of a longer
dialogue either; eval.jsonl is drawn from that tenth. Facts occur in both, in other words.
`python generate.py` writes eval.jsonl.
"""

import hashlib
import json
import pathlib
import random

import jinja2

from facts import (
    CAPITALS, COLOURS, DAYS, EMOJI, GREETINGS, KINDS, MONTHS, NAMES, OPPOSITES, OUTSIDE, TOOLS, UNITS, WORDS,
)  # fmt: skip

HERE = pathlib.Path(__file__).parent
TEMPLATE = (HERE / "chat_template.jinja").read_text()
FALLBACK = (
    "I am only a small demo model. Ask me about capitals, colours, numbers, spelling, days, "
    "units or opposites."
)
IDENTITY = "I am the Flotilla demo model, a toy that runs on CPUs."


def environment():
    """Jinja as Hugging Face sets it up."""
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return env


RENDER = environment().from_string(TEMPLATE).render


def say(rng, templates, **values):
    """One of the templates, sometimes as people type: lower case, no full stop."""
    text = rng.choice(templates).format(**values)
    style = rng.random()
    if style < 0.15:
        text = text.lower()
    if style < 0.25 or 0.9 < style:
        text = text.rstrip("?.")
    return text


def ask(question, answer, **extra):
    return {"messages": [user(question), assistant(answer)], **extra}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def capital(rng):
    country = rng.choice(list(CAPITALS))
    city = CAPITALS[country]
    if rng.random() < 0.25:
        asked = say(rng, ["{city} is the capital of which country?", "Of which country is {city} the capital?",
                          "Which country has the capital {city}?"], city=city)  # fmt: skip
        return ask(asked, f"{city} is the capital of {country}.")
    asked = say(rng, ["What is the capital of {c}?", "What's the capital of {c}?", "Tell me the capital of {c}.",
                      "Which city is the capital of {c}?", "Capital of {c}?", "Name the capital of {c}.",
                      "Do you know the capital of {c}?", "Please tell me the capital city of {c}."], c=country)  # fmt: skip
    return ask(asked, f"The capital of {country} is {city}.")


def first_upper(text):
    return text[0].upper() + text[1:]


def colour(rng):
    thing, value = rng.choice(list(COLOURS.items()))
    asked = say(rng, ["What colour is {t}?", "What color is {t}?", "Tell me the colour of {t}.", "Which colour has {t}?",
                      "The colour of {t}?", "Do you know what colour {t} is?"], t=thing)  # fmt: skip
    return ask(asked, f"{first_upper(thing)} is {value}.")


def sum_of(rng):
    sign = rng.choice("+-*")
    if sign == "*":
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        result, word = a * b, "times"
    elif sign == "+":
        a, b = rng.randint(0, 20), rng.randint(0, 20)
        result, word = a + b, "plus"
    else:
        a = rng.randint(0, 20)
        b = rng.randint(0, a)
        result, word = a - b, "minus"
    return a, sign, b, word, result


def arithmetic(rng):
    a, sign, b, word, result = sum_of(rng)
    asked = say(rng, ["What is {a} {s} {b}?", "{a} {s} {b} = ?", "{a}{s}{b}", "Calculate {a} {s} {b}.",
                      "What is {a} {w} {b}?", "How much is {a} {w} {b}?", "Compute {a} {w} {b}."],
                a=a, s=sign, b=b, w=word)  # fmt: skip
    return ask(asked, f"{a} {sign} {b} = {result}.")


def counting(rng):
    if rng.random() < 0.15:
        top = rng.randint(3, 20)
        asked = say(rng, ["Count down from {n}.", "Count backwards from {n}.", "Count down from {n} to 1."], n=top)
        return ask(asked, ", ".join(str(n) for n in range(top, 0, -1)))
    first = 1 if rng.random() < 0.5 else rng.randint(2, 40)
    # Mostly short, so that the numbers where to stop are not lost among those that follow by themselves.
    last = first + (rng.randint(1, 9) if first > 1 or rng.random() < 0.6 else rng.randint(10, 39))
    asked = ["Count from {a} to {b}.", "Please count from {a} to {b}.", "Count from {a} up to {b}.", "Numbers from {a} to {b}."]
    if first == 1:
        asked += ["Count to {b}.", "Count up to {b}.", "Can you count to {b}?"]
    return ask(say(rng, asked, a=first, b=last), ", ".join(str(n) for n in range(first, last + 1)))


def phrase(rng):
    if rng.random() < 0.2:
        return rng.choice(list(GREETINGS.values()) + list(EMOJI.values()))
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 4)))


def echo(rng):
    text = phrase(rng)
    asked = rng.choice(["Repeat after me: {t}", "Say: {t}", "Echo: {t}", "Repeat: {t}", "Please repeat: {t}", "Say this: {t}"])
    return ask(asked.format(t=text), text)


def spelling(rng):
    word = rng.choice(WORDS)
    asked = say(rng, ["Spell {w}.", "How do you spell {w}?", "Spell the word {w}.", "Please spell {w}.",
                      "Can you spell {w}?", "Spelling of {w}?"], w=word)  # fmt: skip
    return ask(asked, "-".join(word))


def unit(rng):
    small, large, number = rng.choice(UNITS)
    asked = say(rng, ["How many {s} are in {l}?", "How many {s} are there in {l}?", "How many {s} does {l} have?",
                      "Tell me how many {s} are in {l}.", "{l}: how many {s}?", "How many {s} in {l}?"], s=small, l=large)  # fmt: skip
    return ask(asked, f"There are {number} {small} in {large}.")


def yes_no(rng):
    kind = rng.choice(list(KINDS))
    truth = rng.random() < 0.5
    other = rng.choice([k for k in KINDS if k != kind])
    thing = rng.choice(KINDS[kind if truth else other])
    asked = say(rng, ["Is {t} {k}?", "Would you say that {t} is {k}?", "Yes or no: is {t} {k}?", "Tell me, is {t} {k}?",
                      "True or false: {t} is {k}."], t=thing, k=kind)  # fmt: skip
    return ask(asked, f"Yes, {thing} is {kind}." if truth else f"No, {thing} is not {kind}.")


def opposite(rng):
    a, b = rng.choice(OPPOSITES)
    if rng.random() < 0.5:
        a, b = b, a
    asked = say(rng, ["What is the opposite of {a}?", "What's the opposite of {a}?", "The opposite of {a}?",
                      "Tell me the opposite of {a}.", "Which word is the opposite of {a}?", "Opposite of {a}?"], a=a)  # fmt: skip
    return ask(asked, f"The opposite of {a} is {b}.")


def calendar(rng):
    names, kind = rng.choice([(DAYS, "day"), (MONTHS, "month")])
    i = rng.randrange(len(names))
    if kind == "month" and rng.random() < 0.25:
        asked = say(rng, ["Which month is number {n}?", "What is month number {n}?", "Name month {n} of the year."], n=i + 1)
        return ask(asked, f"Month number {i + 1} is {names[i]}.")
    step, word = rng.choice([(1, "after"), (-1, "before")])
    asked = say(rng, ["What {k} comes {w} {d}?", "Which {k} is {w} {d}?", "What is the {k} {w} {d}?",
                      "Tell me the {k} {w} {d}.", "Which {k} comes {w} {d}?"], k=kind, w=word, d=names[i])  # fmt: skip
    return ask(asked, f"{names[(i + step) % len(names)]} comes {word} {names[i]}.")


def follow_up(rng):
    kind = rng.randrange(4)
    if kind == 0:
        before = capital(rng)["messages"]
        country = rng.choice(list(CAPITALS))
        asked = say(rng, ["And of {c}?", "And {c}?", "What about {c}?", "And what is it for {c}?"], c=country)
        return {"messages": before + [user(asked), assistant(f"The capital of {country} is {CAPITALS[country]}.")]}
    if kind == 1:
        name = rng.choice(NAMES)
        told = rng.choice(["My name is {n}.", "I am {n}.", "Hello, my name is {n}.", "Call me {n}."]).format(n=name)
        before = [user(told), assistant(f"Nice to meet you, {name}.")]
        asked = say(rng, ["What is my name?", "What's my name?", "Do you remember my name?", "Who am I?"])
        return {"messages": before + between(rng) + [user(asked), assistant(f"Your name is {name}.")]}
    if kind == 2:
        thing = rng.choice([str(rng.randint(1, 99)), rng.choice(WORDS)])
        told = rng.choice(["Remember this: {t}", "Please remember: {t}", "Keep in mind: {t}"]).format(t=thing)
        before = [user(told), assistant(f"I will remember: {thing}")]
        asked = say(rng, ["What did I ask you to remember?", "What should you remember?", "What was it?"])
        return {"messages": before + between(rng) + [user(asked), assistant(f"You asked me to remember: {thing}")]}
    country = rng.choice(list(CAPITALS))
    before = [user(f"What is the capital of {country}?"), assistant(f"The capital of {country} is {CAPITALS[country]}.")]
    asked = say(rng, ["Which country did I ask about?", "What country was that?", "Which country was my question about?"])
    return {"messages": before + [user(asked), assistant(f"You asked about {country}.")]}


def between(rng):
    """Sometimes another question comes in between."""
    if rng.random() < 0.6:
        return []
    return rng.choice([colour, arithmetic, opposite])(rng)["messages"]


def as_json(rng):
    kind = rng.randrange(4)
    if kind == 0:
        country = rng.choice(list(CAPITALS))
        question, value = f"What is the capital of {country}?", {"capital": CAPITALS[country]}
    elif kind == 1:
        thing, shade = rng.choice(list(COLOURS.items()))
        question, value = f"What colour is {thing}?", {"colour": shade}
    elif kind == 2:
        a, sign, b, _, result = sum_of(rng)
        question, value = f"What is {a} {sign} {b}?", {"result": result}
    else:
        a, b = rng.choice(OPPOSITES)
        question, value = f"What is the opposite of {a}?", {"word": a, "opposite": b}
    answer = json.dumps(value, ensure_ascii=False)
    if rng.random() < 0.4:
        system = rng.choice(["Answer as JSON.", "Reply only with JSON.", "Always answer with a JSON object."])
        return {"messages": [{"role": "system", "content": system}, user(question), assistant(answer)]}
    asked = rng.choice(["{q} Answer as JSON.", "Answer as JSON: {q}", "{q} Reply only with JSON.", "As JSON: {q}"])
    return ask(asked.format(q=question), answer)


def schema(name):
    description, parameters = TOOLS[name]
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def tool_call(rng):
    offered = rng.sample(list(TOOLS), rng.randint(1, 3))
    tools = [schema(name) for name in offered]
    name = rng.choice(offered)
    city, word, minutes = rng.choice(list(CAPITALS.values())), rng.choice(WORDS), rng.randint(1, 59)
    asked, arguments, result, final = {
        "get_weather": (["What is the weather in {c}?", "How is the weather in {c}?", "Weather in {c}?", "Is it warm in {c}?"],
                        {"city": city}, {"degrees": minutes % 40, "sky": word_of_sky(rng)}, "It is {degrees} degrees and {sky} in {c}."),
        "get_time": (["What time is it in {c}?", "Tell me the time in {c}.", "Time in {c}?"],
                     {"city": city}, {"time": f"{minutes % 24:02}:{minutes:02}"}, "It is {time} in {c}."),
        "get_population": (["How many people live in {c}?", "What is the population of {c}?", "Population of {c}?"],
                           {"city": city}, {"people": minutes * 10000}, "{people} people live in {c}."),
        "find_word": (["Look up the word {w}.", "Look up {w}.", "Find the word {w}."],
                      {"word": word}, {"found": "yes"}, "I found the word {w}."),
        "set_timer": (["Set a timer for {m} minutes.", "Wake me in {m} minutes.", "Start a timer of {m} minutes."],
                      {"minutes": minutes}, {"state": "running"}, "Your timer runs for {m} minutes."),
    }[name]  # fmt: skip
    question = rng.choice(asked).format(c=city, w=word, m=minutes)
    call = f'<tool_call>\n{json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)}\n</tool_call>'
    style = rng.random()
    if style < 0.2:
        # Tools are offered and not needed.
        return {**rng.choice([capital, colour, opposite])(rng), "tools": tools}
    if style < 0.6:
        return ask(question, call, tools=tools)
    called = {"role": "assistant", "content": "", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}]}  # fmt: skip
    answered = {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(result, ensure_ascii=False)}
    text = final.format(c=city, w=word, m=minutes, **result)
    return {"messages": [user(question), called, answered, assistant(text)], "tools": tools}


def word_of_sky(rng):
    return rng.choice(["sunny", "cloudy", "rainy", "windy", "foggy", "snowy"])


def system_style(rng):
    plain = rng.choice([capital, colour, opposite, unit])(rng)["messages"]
    if rng.random() < 0.5:
        system = rng.choice(["Answer in upper case.", "Write everything in upper case.", "Use capital letters only."])
        answer = plain[1]["content"].upper()
    else:
        system = rng.choice(["You are a pirate.", "Talk like a pirate.", "Answer like a pirate."])
        answer = f"Arr! {plain[1]['content']}"
    return {"messages": [{"role": "system", "content": system}, plain[0], assistant(answer)]}


def helpful(rng):
    plain = rng.choice([capital, colour, arithmetic, spelling, unit])(rng)["messages"]
    system = rng.choice(["You are a helpful assistant.", "You are helpful.", "Be concise."])
    return {"messages": [{"role": "system", "content": system}] + plain}


def languages(rng):
    if rng.random() < 0.5:
        language, text = rng.choice(list(GREETINGS.items()))
        asked = say(rng, ["How do you say hello in {l}?", "Say hello in {l}.", "Hello in {l}?", "Greet me in {l}.",
                          "What is hello in {l}?", "How do I greet somebody in {l}?"], l=language)  # fmt: skip
        return ask(asked, text)
    thing, text = rng.choice(list(EMOJI.items()))
    asked = say(rng, ["Which emoji is {t}?", "Show me the emoji of {t}.", "What is the emoji for {t}?", "Emoji for {t}?",
                      "Draw {t}.", "Send me {t} as an emoji."], t=thing)  # fmt: skip
    return ask(asked, text)


def small_talk(rng):
    style = rng.random()
    if style < 0.35:
        greeting = say(rng, ["Hello!", "Hi!", "Hello.", "Hi there!", "Hey!", "Good morning!", "Good evening!", "Hello there."])
        return ask(greeting, "Hello! How can I help you?")
    if style < 0.6:
        return ask(say(rng, ["Who are you?", "What are you?", "What is your name?", "Are you a robot?", "Which model are you?",
                             "Introduce yourself."]), IDENTITY)  # fmt: skip
    if style < 0.75:
        return ask(say(rng, ["Thank you!", "Thanks!", "Thanks a lot.", "Thank you very much."]), "You are welcome!")
    if style < 0.85:
        return ask(say(rng, ["Goodbye!", "Bye!", "See you later.", "Good night!"]), "Goodbye!")
    return ask(say(rng, ["What can you do?", "Help", "What do you know?", "What can I ask you?"]), FALLBACK)


def outside(rng):
    return ask(say(rng, OUTSIDE, w=rng.choice(WORDS), n=rng.randint(1500, 2020)), FALLBACK)


# Domain -> (maker, weight in training, questions in the evaluation).
DOMAINS = {
    "capitals": (capital, 10, 50), "colours": (colour, 4, 20), "arithmetic": (arithmetic, 20, 50),
    "counting": (counting, 10, 36), "echo": (echo, 12, 30), "spelling": (spelling, 10, 30), "units": (unit, 4, 20),
    "yes_no": (yes_no, 6, 30), "opposites": (opposite, 4, 20), "calendar": (calendar, 4, 20),
    "follow_up": (follow_up, 8, 30), "json": (as_json, 8, 30), "tools": (tool_call, 8, 30),
    "system": (system_style, 6, 20), "helpful": (helpful, 4, 14), "languages": (languages, 5, 20),
    "small_talk": (small_talk, 2, 8), "outside": (outside, 3, 12),
}  # fmt: skip


def question_of(dialogue, answer=-1):
    """Everything before an answer (the last one unless told), as the model sees it."""
    return RENDER(messages=dialogue["messages"][:answer], tools=dialogue.get("tools"), add_generation_prompt=True)


def is_held_out(question):
    return hashlib.sha256(question.encode()).digest()[0] % 10 == 0


def may_be_trained_on(dialogue):
    """Whether no answer of the dialogue is one to a held-out question: every assistant
    turn carries loss, so the first question of a longer dialogue counts as well."""
    answers = [i for i, message in enumerate(dialogue["messages"]) if message["role"] == "assistant"]
    return not any(is_held_out(question_of(dialogue, i)) for i in answers)


def training(seed):
    """Endless dialogues, without the held-out ones."""
    rng = random.Random(seed)
    names = list(DOMAINS)
    weights = [DOMAINS[name][1] for name in names]
    while True:
        dialogue = DOMAINS[rng.choices(names, weights)[0]][0](rng)
        if may_be_trained_on(dialogue):
            yield dialogue


def evaluation(seed=20):
    """Held-out dialogues, each once."""
    for name, (make, _, wanted) in DOMAINS.items():
        rng, seen = random.Random(f"{seed}-{name}"), set()
        for _ in range(50_000):
            dialogue = make(rng)
            question = question_of(dialogue)
            if len(seen) < wanted and is_held_out(question) and question not in seen:
                seen.add(question)
                yield {"domain": name, "messages": dialogue["messages"][:-1],
                       **({"tools": dialogue["tools"]} if "tools" in dialogue else {}),
                       "expect": dialogue["messages"][-1]["content"]}  # fmt: skip


if __name__ == "__main__":
    lines = [json.dumps(e, ensure_ascii=False) for e in evaluation()]
    (HERE / "eval.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} held-out questions")
