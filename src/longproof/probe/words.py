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
water time people year way day world life hand part child eye woman place work week case point government company
group problem fact night home room mother area money story month lot right study book job word business issue side
kind house service friend father power hour game line member car city community team minute idea body information back
parent face level office door health person art history party result change morning reason research moment air teacher
force education foot boy age policy music market sense nation plan college interest experience effect use class
control field development role effort rate heart show leader light voice wife mind price report decision son view
relationship town road arm difference value building action season society director position player record paper space
ground form event official matter center couple site project activity star table need oil situation cost industry
figure street image phone data picture practice piece land product doctor wall worker news test movie north love
support technology step baby computer type attention film tree source organization hair look century evidence window
culture chance brother energy period course summer plant opportunity term letter condition choice rule daughter south
husband floor material population call economy church risk fire future bank west sport board subject officer rest
behavior performance top goal bed order author nature color store sound movement page concern series language response
animal factor decade article east artist scene stock career treatment approach size dog fund media sign thought list
individual quality pressure resource meeting success cup amount ability staff character growth degree region
television box training trade deal feeling standard bill message analysis benefit section glass skill sister professor
operation stage design knowledge station strategy truth song example environment leg dark public ball garden river
stone mountain winter spring bridge island forest village kitchen bread coffee horse bird fish boat ship train wheel
paint wood metal silver gold iron cloth wind rain snow cloud storm sun moon sky sea lake beach valley hill farm grass
flower leaf root fruit apple orange salt sugar milk butter good new old great high small large long young early late
strong possible whole free true full special easy clear recent certain personal open red difficult available likely
medical current wrong private past foreign fine common poor natural significant similar hot central happy serious
ready simple left physical general environmental financial blue final main green nice huge popular traditional
cultural quiet bright warm cold soft deep wide slow quick make know think take see come want find give tell ask seem
feel try leave keep let begin help talk turn start play run move like live believe hold bring happen write provide sit
stand pay meet include continue set learn lead understand watch follow stop create speak read allow add spend grow
walk win offer remember consider appear buy wait serve send expect build stay fall cut reach remain suggest raise pass
sell require decide pull carry return explain hope develop break receive agree produce eat cover catch draw choose
cause listen throw fill drop push close drive often always never again away together almost later today perhaps quite
already ever yet soon maybe around along across behind without against within toward among through about above below
outside inside until because although though lamp candle mirror carpet pencil basket blanket pillow corner ceiling
tower castle harbor meadow desert ocean coast path trail lane yard fence gate roof tile brick clay sand dust smoke
steam ice frost shadow dawn dusk noon bell drum piano dance theater museum library square fountain bench hat coat
shirt dress shoe sock glove belt button needle thread rope chain hook nail hammer wagon cart engine motor pipe pump
valve wire lens map globe clock rabbit sheep goat cow pig duck goose eagle owl bear wolf fox deer mouse frog bee ant
worm seed grain corn wheat rice bean onion potato carrot lemon cherry grape nut honey jam soup stew cake pie tea juice
bowl plate spoon fork knife
"""

OPENERS: tuple[str, ...] = tuple(_OPENERS.split())
"""Words that begin a sentence, capitalised."""

WORDS: tuple[str, ...] = tuple(_WORDS.split())
"""Common words in lower case, used after a space."""
