"""The words that generated text is made of: our own list, with parts that combine into thousands of names.

Nothing in it is a code, a password or an instruction, and no number has more than four digits, so that a value of five
digits or more never stands in generated text by chance.
"""

from __future__ import annotations


def _list(text: str) -> tuple[str, ...]:
    """Entries between commas or line ends."""
    return tuple(part.strip() for line in text.strip().splitlines() for part in line.split(",") if part.strip())


FIRST_NAMES = _list("""
Ada, Agnes, Albert, Alma, Amos, Anna, Arthur, Astrid, Basil, Beatrix, Bela, Bruno, Carl, Cecily, Clara, Clement, Cora
Dagny, Dora, Edgar, Edith, Edmund, Elias, Ella, Elsa, Emil, Enid, Ernest, Esther, Eva, Felix, Flora, Frances, Frida
Gerda, Gideon, Gilbert, Greta, Gustav, Hanna, Harriet, Hector, Hedda, Helga, Henrik, Hilda, Hugo, Ida, Ines, Ingrid
Irma, Isaac, Ivor, Jonas, Josef, Judith, Julius, Karin, Klara, Konrad, Lars, Laura, Leander, Leo, Lina, Lorenz, Lotte
Lucas, Ludwig, Mabel, Magda, Magnus, Margit, Martha, Mathilda, Maud, Max, Milo, Mina, Moritz, Nadia, Nils, Nora, Olaf
Olga, Oskar, Otto, Paula, Petra, Philip, Ragna, Rasmus, Rosa, Rufus, Ruth, Samuel, Selma, Sigrid, Silas, Simon, Sofia
Stella, Sven, Tabitha, Thea, Theodor, Thora, Tilda, Tobias, Ursula, Valentin, Vera, Victor, Viola, Walter, Wanda
Wilma
""")

SURNAME_HEADS = _list("""
Alder, Ash, Barn, Birk, Black, Brack, Bram, Brook, Cald, Carl, Clay, Cobb, Cran, Dal, Dean, Drax, Dun, East, Eld, Ever
Fair, Fal, Fen, Fern, Finch, Garn, Gold, Gran, Grey, Hal, Harg, Hart, Hazel, Heath, Holm, Horn, Ing, Kel, Kirk, Lang
Lark, Lin, Lock, Long, Mar, Mead, Mill, Moor, Nor, Oak, Old, Pem, Pen, Quill, Raven, Red, Rook, Rush, Sal, Sax, Sel
Shel, Sten, Stone, Swan, Thorn, Tor, Under, Vant, Wake, War, Wel, West, Whit, Wick, Wind, Wood, Yar
""")

SURNAME_TAILS = _list("""
beck, berg, born, bourne, brand, bridge, bury, by, cott, croft, dale, den, field, ford, gate, grave, ham, haven, hurst
kamp, land, ley, lund, man, mark, mere, more, mond, quist, ridge, son, stad, stead, stein, strand, thorpe, ton, vik
wall, ward, well, wick, win, worth
""")

PLACE_HEADS = _list("""
Amber, Apple, Arch, Barley, Bell, Birch, Bishop, Boat, Bramble, Brick, Candle, Canal, Castle, Cedar, Chapel, Cherry
Clover, Cooper, Copper, Corn, Crane, Cross, Drummer, Eagle, Elm, Falcon, Ferry, Fiddler, Fisher, Fountain, Fox, Garden
Glass, Glover, Goose, Granary, Harbor, Hazel, Heron, Hop, Iron, Juniper, Kettle, King, Lantern, Lime, Linden, Maple
Market, Mason, Meadow, Mill, Mint, Monk, Mulberry, Nettle, Orchard, Otter, Oyster, Park, Pear, Pilgrim, Plum, Potter
Quarry, Raven, Reed, River, Rope, Rose, Saddler, Salt, Schoolhouse, Shepherd, Silver, Smith, South, Spring, Station
Swan, Tanner, Temple, Thistle, Timber, Tower, Vine, Walnut, Water, Weaver, Well, Wheel, Willow, Windmill, Wool
""")

PLACE_TAILS = _list("""
Alley, Arcade, Avenue, Bank, Bridge, Close, Corner, Court, Crescent, Dock, Drive, Fields, Gardens, Gate, Green, Grove
Hall, Hill, House, Lane, Lodge, Passage, Place, Quay, Rise, Road, Row, Square, Stairs, Street, Terrace, Wharf, Yard
""")

MONTHS = _list("January, February, March, April, May, June, July, August, September, October, November, December")
WEEKDAYS = _list("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")

TRADES = _list("""
baker, bookbinder, brewer, bricklayer, butcher, cabinet maker, carpenter, carrier, chandler, cheesemonger, clockmaker
cobbler, cooper, draper, dyer, farrier, fishmonger, florist, glazier, glover, greengrocer, harness maker, hatter
innkeeper, ironmonger, joiner, lighterman, locksmith, mason, miller, nurseryman, optician, painter, papermaker
pharmacist, piano tuner, plumber, potter, printer, roofer, ropemaker, sailmaker, saddler, seedsman, shipwright, smith
soap maker, stonecutter, tailor, tanner, thatcher, tiler, tinsmith, upholsterer, watchmaker, weaver, wheelwright
wine merchant
""")

GOODS = _list("""
apples, apricots, awnings, barley, beeswax, bells, blankets, boots, bottles, bran, brass hinges, bricks, brooms
buttons, candles, canvas, carpets, cedar planks, chairs, charcoal, cheese, chestnuts, cider, clay pipes, cloves, coal
coffee, copper wire, cork, corduroy, cotton thread, crockery, curtains, dried peas, ducks, eggs, envelopes, felt, figs
firewood, fish hooks, flagstones, flax, flour, garlic, ginger, glass panes, glue, gravel, hay, hazelnuts, hemp rope
herrings, honey, hops, horseshoes, ink, iron nails, jam jars, juniper berries, kettles, ladders, lamp oil, lanterns
lead pipe, leather, lemons, lime, linen, linseed oil, malt, maple syrup, marbles, mattresses, mustard, needles
oak barrels, oats, olive oil, onions, oranges, paint, paper, paraffin, pears, pencils, pepper, picture frames, pickles
pillows, plaster, plums, potatoes, pumps, quinces, raisins, resin, ribbons, rice, roof tiles, rubber hose, rye, sacks
sailcloth, salt, sand, saucepans, saws, screws, seed corn, shovels, silk, slate, soap, spades, sponges, starch
steel springs, straw, string, sugar, tallow, tar, tea, tent poles, timber, tin plates, tobacco, trunks, turnips, twine
varnish, velvet, vinegar, walnuts, watering cans, wax paper, wheat, wheelbarrows, wicker baskets, window blinds, wine
wire netting, wool, yarn
""")

MEASURES = _list("""
bales, barrels, baskets, boxes, bundles, bushels, cans, cartloads, cases, casks, chests, crates, dozens, drums
gallons, hampers, jars, loads, packets, pallets, pounds, reels, rolls, sacks, sheets, stacks, tins, trays, tubs, yards
""")

ROOMS = _list("""
archive, assembly hall, attic, back office, bakery, basement, bell tower, boat shed, boiler room, canteen, cellar
chapel, cloakroom, coach house, cold store, committee room, conservatory, corridor, counting house, courtyard
dining hall, drying loft, engine shed, entrance hall, first landing, gallery, gatehouse, glasshouse, granary
gymnasium, infirmary, kitchen, laundry, lecture hall, library, linen room, loading bay, lobby, machine room, map room
music room, north wing, nursery, observatory, packing room, pantry, porch, post room, print shop, pump house
reading room, records room, school kitchen, scullery, signal box, south wing, stables, stage, stairwell, stockroom
strong room, studio, tack room, tea room, ticket office, tool store, upper floor, vestry, waiting room, wash house
weighing shed, wine cellar, workshop
""")

THINGS = _list("""
awning, barometer, bell rope, bench, boiler, bookcase, chimney, clock, coal chute, counter, cupboard, curtain rail
dishwasher, door handle, doormat, drain, dumb waiter, east gate, fan, fence, fire door, flagpole, floorboard, fountain
fuse box, gas meter, goods lift, gutter, hand pump, handrail, heater, hoist, hot tap, kettle, keyboard, ladder, lamp
letter box, loudspeaker, mirror, notice board, organ, oven, padlock, piano, printer, projector, radiator, railing
refrigerator, roof hatch, roller blind, scales, sewing machine, shutter, side door, signpost, sink, skylight, sluice
spotlight, stair carpet, stopcock, stove, telephone, thermostat, trapdoor, turnstile, typewriter, umbrella stand
ventilator, wall clock, wash basin, water tank, weather vane, west gate, window catch, winch
""")

FAULTS = _list("""
buzzes when it rains, came off its hinges, cannot be reached from the ladder, does not close, does not turn off
drips at night, has a cracked frame, has come loose, hums in damp weather, is blocked with leaves
is colder than it was, is covered in soot, is missing two screws, is rusted through, is stuck half way
jams on the second turn, keeps blowing a fuse, leaks into the room below, lets in a draught, makes a grinding noise
needs a new belt, needs oil, no longer locks, no longer rings, rattles in the wind, runs twenty minutes slow
shakes when the pump starts, shows the wrong hour, smells of burnt dust, sticks in the mornings
stops after a few minutes, switches itself on, takes an hour to warm up, trips the alarm, vibrates against the wall
was left open over the weekend, was painted shut, will not move, works only in the afternoon
""")

REMEDIES = _list("""
a new gasket was fitted, it was cleaned and oiled, it was taken apart and reassembled
it works again after a night's rest, passed to the day shift, passed to the night shift
put off until the frost is over, repaired with a spare from the store, replaced under guarantee, the belt was changed
the carpenter has been asked to look at it, the cause was a bent pin, the cause was a mouse, the catch was filed down
the filter was full, the fuse was replaced, the glazier comes next week, the hinge was straightened
the maker has been written to, the missing part is on order, the old one was put back, the pipe was lagged
the roofer was called, the seal was renewed, the switch had been mislabelled, the tenant mended it himself
the timer had been set wrong, the wiring was dried out, waiting for a key, waiting for the plumber
a notice was hung up, a second visit is needed, nothing unusual was found, the screws were tightened
""")

PROPOSALS = _list("""
a bench be set beside the pond, a copy be sent to every tenant, a second clerk be taken on for the season
an inventory be drawn up, last year's tariff be kept, new curtains be bought, the accounts be printed
the annual dinner be moved, the archive be opened to schools, the bell be rung at noon again
the boundary stones be inspected, the bridge toll be halved, the bylaws be read aloud, the cellar be let
the choir be lent the hall, the clock be sent to the maker, the coal be bought early, the collection be insured
the committee meet twice a month, the cost be shared by both parishes, the debt be written off, the drains be surveyed
the east gate be repainted, the fees be paid in two parts, the ferry run until dusk, the fire buckets be replaced
the footpath be gravelled, the front steps be relaid, the hedge be cut before the nesting season
the key be kept by the warden, the lamps be lit an hour earlier, the lease be extended
the library stay open on Saturdays, the market be held indoors, the mill race be cleared, the old seats be sold
the orchard be fenced, the piano be tuned, the porter be given a bicycle, the prize be shared, the ropes be tested
the roof be mended in slate, the rules be translated, the savings be put on deposit, the school garden be dug over
the seats be numbered, the stall rents be published, the surplus go to the infirmary
the telephone be moved to the lobby, the tender be opened in public, the trees be pruned, the visitors' book be bound
the walls be limewashed, the well be covered, the windows be cleaned monthly
""")

OCCASIONS = _list("""
Ascension Day, Candlemas, May Day, Midsummer, Shrove Tuesday, the audit, the autumn term, the centenary
the cattle show, the children's concert, the cider pressing, the election, the first frost, the flower show
the founders' supper, the harvest fair, the hop picking, the horse sale, the launch of the ferry
the lantern procession, the regatta, the ringers' outing, the school holidays, the sheep shearing, the spring cleaning
the spring tides, the summer fete, the visit of the inspectors, the winter term, the wool market, the wedding season
Whitsun
""")

MANNERS = _list("""
by bank draft, by money order, in advance, in cash, in kind, in three parts, less a discount for prompt payment
on account, on delivery, on thirty days' credit, through the agent, with interest, with the deposit deducted
after a reminder, after the weighing, against a receipt, at the old price, at the quay, out of the reserve
""")

REMARKS = _list("""
the carrier was late, the cart had to go back for the rest, the cellar key was returned, the clerk checked it twice
the counterfoil is in the blue folder, the dog was let in again, the empties go back, the first frost came that night
the handwriting is hard to read, the ink was poor, the invoice had the wrong street, the lamp was left burning
the lid was cracked, the next one is due at Michaelmas, the old book was closed, the quantity was estimated
the receipt was mislaid and found, the road was flooded, the samples were kept, the scales were tested that morning
the seal was unbroken, the total was read out, the weather was fair, the witness signed below
two were damaged in the rain, nobody objected, it was raining, the rest follows by boat, a note was pinned to the page
the previous entry was corrected
""")

COLOURS = _list("""
amber, ash grey, black, blue, bronze, brown, buff, chestnut, cream, crimson, dark green, dun, fawn, gold, green, grey
indigo, ivory, lilac, maroon, mauve, navy, ochre, olive, orange, pale blue, pink, plum, purple, red, russet, rust
saffron, scarlet, silver, slate, straw, tan, teal, turquoise, violet, white, yellow
""")

BODIES = _list("""
the allotment society, the almshouse, the angling club, the bee keepers, the board of guardians, the boat club
the burial society, the canal company, the chess circle, the choir, the church wardens, the commoners
the cooperative dairy, the cricket club, the debating society, the ferry company, the fire brigade
the friendly society, the gardeners' guild, the gas works, the harbor board, the infirmary, the literary institute
the market committee, the mutual insurance, the parish council, the railway inn, the reading circle, the school board
the savings bank, the temperance hall, the theatre company, the town band, the turnpike trust, the water board
the weavers' union, the women's institute
""")
