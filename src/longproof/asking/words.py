"""Plain words that filler and nonces are made of. No numbers, no names, nothing like a code or an instruction.

Most are one token with a leading space in current tokenizers, but nothing relies on that: the server is asked
(`lexicon`). Their order is part of the evidence format: a prompt is rebuilt from seed, nonce and these lists.
"""

from __future__ import annotations

_OPENERS = """
The This That These When Where While After Before Many Some Most Each Every Our Their His Her In On At From With Under
Over Between During Near Once Here There And But Then Still Even
"""

_WORDS = """
way day eye lot job car art air boy age use son arm oil top bed dog cup box leg sun sky sea new old red hot see ask
try let run sit pay set add win buy cut eat yet ice hat map cow pig owl fox bee ant nut jam pie tea time year life
hand part work week case fact home room area book word side kind hour game line city team idea body back face door
foot plan role rate show wife mind view town road form site star need cost data land wall news test love step baby
type film tree hair look term rule call risk fire bank west rest goal page east size fund sign list deal bill song
dark ball bird fish boat ship wood gold iron wind rain snow moon lake hill farm leaf root salt milk good high long
late free true full easy open past fine poor left blue main nice huge warm cold soft deep wide slow make know take
come want find give tell seem feel keep help talk turn play move like live hold meet lead stop read grow walk wait
send stay fall pass sell pull hope draw fill drop push away ever soon lamp path lane yard gate roof tile clay sand
dust dawn dusk noon bell drum coat shoe sock belt rope hook nail cart pipe pump wire lens goat duck bear wolf deer
frog worm seed corn rice bean soup stew cake bowl fork water world child woman place point group night money story
month right study issue house power level party force music sense class field heart light voice price value paper
space event table image phone piece movie north plant south floor sport board order color store sound scene stock
media staff trade glass skill stage truth river stone bread horse train wheel paint metal cloth cloud storm beach
grass fruit apple sugar great small large young early whole clear wrong happy ready final green quiet quick think
leave begin start bring write stand learn watch speak allow spend offer serve build reach raise carry break agree
cover catch cause throw close drive often never again later today quite maybe along among about above below until
tower ocean coast trail fence brick smoke steam frost piano dance bench shirt dress glove chain wagon motor valve
globe clock sheep goose eagle mouse grain wheat onion lemon grape honey juice plate spoon knife people mother friend
father member minute parent office health person result change reason moment policy market nation effect effort leader
report action season player record ground matter center couple figure street doctor worker source window chance energy
period course summer letter choice church future author nature series animal factor decade artist career amount growth
degree region sister design public garden winter spring bridge island forest coffee silver valley flower orange butter
strong recent likely common simple bright happen follow create appear expect remain decide return choose listen always
almost around across behind within toward inside though candle mirror carpet pencil basket pillow corner castle harbor
meadow desert shadow museum square button needle thread hammer engine rabbit potato carrot cherry company problem
service history morning teacher college control society project picture product support century culture brother
husband economy subject officer concern article thought quality meeting success ability feeling message benefit
section station example village kitchen special certain medical current private foreign natural similar central
serious general popular believe provide include suggest require explain develop receive produce perhaps already
without against through outside because blanket ceiling theater library business research interest decision building
director position official activity industry practice computer evidence daughter material behavior movement language
response approach pressure resource training standard analysis strategy mountain possible personal physical cultural
continue remember consider together although fountain community education situation attention condition treatment
character professor operation knowledge difficult available financial government experience difference technology
population individual television understand information development opportunity performance environment significant
traditional relationship organization environmental
"""

OPENERS: tuple[str, ...] = tuple(_OPENERS.split())
"""Words that begin a sentence, capitalised."""

WORDS: tuple[str, ...] = tuple(_WORDS.split())
"""Common words in lower case, used after a space; the shortest first, which are the likeliest to be one token."""

SHORTEST_WORDS = 128
"""How many words nonces are drawn from, and how many a server is asked about where each answer costs a request."""
