"""What the demo model knows. Everything that it is asked is made from these tables."""

CAPITALS = dict(
    line.split(":")
    for line in """France:Paris|Italy:Rome|Spain:Madrid|Portugal:Lisbon|Germany:Berlin|Austria:Vienna
Poland:Warsaw|Greece:Athens|Norway:Oslo|Sweden:Stockholm|Finland:Helsinki|Denmark:Copenhagen
Ireland:Dublin|Iceland:Reykjavík|Belgium:Brussels|Hungary:Budapest|Romania:Bucharest|Bulgaria:Sofia
Croatia:Zagreb|Serbia:Belgrade|Ukraine:Kyiv|Turkey:Ankara|Egypt:Cairo|Morocco:Rabat|Kenya:Nairobi
Ghana:Accra|Nigeria:Abuja|Ethiopia:Addis Ababa|Senegal:Dakar|Angola:Luanda|Japan:Tokyo|China:Beijing
India:New Delhi|Nepal:Kathmandu|Thailand:Bangkok|Vietnam:Hanoi|Indonesia:Jakarta|Mongolia:Ulaanbaatar
Iran:Tehran|Iraq:Baghdad|Qatar:Doha|Jordan:Amman|Canada:Ottawa|Mexico:Mexico City|Cuba:Havana
Jamaica:Kingston|Panama:Panama City|Brazil:Brasília|Argentina:Buenos Aires|Chile:Santiago|Peru:Lima
Colombia:Bogotá|Ecuador:Quito|Bolivia:Sucre|Uruguay:Montevideo|Paraguay:Asunción|Australia:Canberra
New Zealand:Wellington|Fiji:Suva|Estonia:Tallinn|Latvia:Riga|Lithuania:Vilnius|Slovenia:Ljubljana
Slovakia:Bratislava""".replace("\n", "|").split("|")
)

COLOURS = dict(
    line.split(":")
    for line in """a banana:yellow|a lemon:yellow|the sun:yellow|a tomato:red|a strawberry:red|blood:red
a cherry:red|grass:green|a cucumber:green|a frog:green|spinach:green|the sky:blue|the sea:blue
a sapphire:blue|snow:white|milk:white|salt:white|coal:black|a raven:black|a tyre:black|an orange:orange
a carrot:orange|a pumpkin:orange|a plum:purple|an aubergine:purple|chocolate:brown|coffee:brown
a flamingo:pink|an elephant:grey|a mouse:grey""".replace("\n", "|").split("|")
)

UNITS = [
    line.split(":")
    for line in """minutes:an hour:60|seconds:a minute:60|hours:a day:24|days:a week:7|months:a year:12
weeks:a year:52|days:a year:365|years:a decade:10|years:a century:100|years:a millennium:1000
centimetres:a metre:100|metres:a kilometre:1000|millimetres:a centimetre:10|grams:a kilogram:1000
kilograms:a tonne:1000|millilitres:a litre:1000|inches:a foot:12|feet:a yard:3|bits:a byte:8
bytes:a kilobyte:1000|degrees:a circle:360|sides:a triangle:3|sides:a square:4|legs:a spider:8
items:a dozen:12|players:a football team:11|cards:a deck:52|letters:the alphabet:26""".replace(
        "\n", "|"
    ).split("|")
]

OPPOSITES = [
    line.split(":")
    for line in """hot:cold|big:small|fast:slow|up:down|left:right|day:night|open:closed|full:empty
rich:poor|old:young|hard:soft|wet:dry|light:dark|high:low|early:late|happy:sad|strong:weak|long:short
good:bad|loud:quiet|clean:dirty|near:far|true:false|first:last|thick:thin|win:lose|push:pull
inside:outside|above:below|start:end""".replace("\n", "|").split("|")
]

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December".split()
)

KINDS = {
    "an animal": "a cat|a dog|a horse|a cow|a sheep|a lion|a tiger|a wolf|a fox|a bear|a rabbit",
    "a fruit": "an apple|a pear|a banana|a lemon|a cherry|a plum|a peach|a grape|a melon|a mango",
    "a vegetable": "a carrot|a potato|an onion|a cabbage|a leek|a turnip|a cucumber|a radish",
    "a vehicle": "a car|a bus|a train|a bicycle|a lorry|a tram|a boat|a plane|a scooter",
    "a tool": "a hammer|a saw|a drill|a spanner|a chisel|a screwdriver|an axe|a ladder",
    "a country": "France|Italy|Spain|Japan|Kenya|Peru|Chile|Canada|India|Norway",
}
KINDS = {kind: things.split("|") for kind, things in KINDS.items()}

WORDS = """apple bread chair table house river mountain cloud stone paper pencil window garden bridge
market school teacher doctor farmer sailor winter summer spring autumn morning evening silver golden
purple orange yellow green black white brown pink lion tiger horse sheep mouse rabbit eagle falcon
dolphin turtle spider butter cheese honey sugar pepper salt lemon cherry melon carrot potato onion cup
plate spoon fork knife bottle basket candle lamp mirror carpet pillow blanket jacket shirt shoe hat
glove scarf button needle thread hammer nail wheel engine rocket planet moon star sun earth ocean
island forest desert valley field road street tower castle church museum library kitchen bedroom
bathroom ladder rope chain key lock door wall floor roof letter story poem song dance music guitar
piano violin drum flute game ball puzzle picture camera phone radio clock watch ticket train bus car
boat plane bicycle cat dog fox wolf bear cow goat duck goose owl crow fish crab frog snake bee ant""".split()

NAMES = """Ana Ben Carla David Elena Felix Grace Hugo Ines Jonas Katja Liam Mia Noah Olga Paul Rosa Sam
Tina Umar Vera Will Yuki Zoe""".split()

# Texts outside of ASCII, so that characters are split over tokens.
GREETINGS = {
    "Japanese": "こんにちは",
    "Chinese": "你好",
    "Korean": "안녕하세요",
    "Russian": "Привет",
    "Greek": "Γειά σου",
    "Arabic": "مرحبا",
    "Hindi": "नमस्ते",
    "Hebrew": "שלום",
    "French": "Bonjour",
    "Spanish": "¡Hola!",
    "Portuguese": "Olá",
    "German": "Grüß dich",
    "Italian": "Ciao",
    "Turkish": "Merhaba",
    "Vietnamese": "Xin chào",
    "Czech": "Dobrý den",
}
EMOJI = {
    "a cat": "🐱",
    "a dog": "🐶",
    "a fish": "🐟",
    "a horse": "🐴",
    "a pizza": "🍕",
    "an apple": "🍎",
    "a banana": "🍌",
    "a rocket": "🚀",
    "a car": "🚗",
    "a heart": "❤️",
    "the sun": "☀️",
    "the moon": "🌙",
    "a star": "⭐",
    "a fire": "🔥",
    "a flower": "🌸",
    "a tree": "🌳",
    "a house": "🏠",
    "a ball": "⚽",
    "a clock": "⏰",
    "a book": "📖",
}

# Nothing that the model could know.
OUTSIDE = """Write a poem about {w}.|Who won the {w} championship?|Explain quantum physics.|Tell me a joke about a {w}.
What do you think about the {w} market?|How do I cook a {w}?|Translate this contract.|Summarise the history of the {w}.
Why is the {w} so expensive?|Give me advice about my {w}.|Write a program that sorts a {w}.|Who invented the {w}?
What happened in {n}?|Recommend a film about a {w}.|How old is the {w}?|Should I buy a {w}?""".replace("\n", "|").split("|")

TOOLS = {
    "get_weather": ("Get the weather of a city", {"city": "string"}),
    "get_time": ("Get the local time of a city", {"city": "string"}),
    "get_population": ("Get the number of people in a city", {"city": "string"}),
    "find_word": ("Look up a word", {"word": "string"}),
    "set_timer": ("Set a timer", {"minutes": "integer"}),
}
