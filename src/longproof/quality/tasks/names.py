"""Names that keys are given. Plain words that a small model knows, so that a name costs it few tokens.

Their order is part of what a seed means: add new ones at the end of a list.
"""

from __future__ import annotations

_NAMES = """
Birch Maple Cedar Willow Aspen Hazel Rowan Alder Juniper Laurel Cypress Poplar Magnolia Acacia Sequoia Chestnut Walnut
Hawthorn Linden Sycamore Falcon Heron Osprey Kestrel Raven Sparrow Finch Condor Pelican Puffin Plover Magpie Swallow
Starling Cuckoo Pheasant Otter Badger Lynx Marten Bison Walrus Gazelle Ibex Beaver Hedgehog Leopard Panther Jaguar
Dolphin Salmon Sturgeon Mackerel Herring Lobster Oyster Granite Basalt Quartz Topaz Opal Garnet Jasper Onyx Amethyst
Cobalt Nickel Marble Slate Flint Coral Pearl Copper Bronze Pewter Saffron Ginger Nutmeg Clover Thistle Bramble Heather
Lavender Jasmine Orchid Lotus Tulip Dahlia Primrose Violet Marigold Daisy Comet Meteor Nebula Eclipse Aurora Zenith
Horizon Glacier Canyon Prairie Lagoon Summit Harbour Beacon Lantern Anchor Compass Rudder Galleon Clipper Schooner
Trumpet Violin Cello Clarinet Mandolin Tambourine Velvet Linen Satin Tweed Portico Turret Rampart Citadel Chapel Abbey
Orchard Meadow Thicket Hollow Brook Rapids Delta Tundra Savanna Oasis
"""
NAMES: tuple[str, ...] = tuple(_NAMES.split())
"""Single names, one word each."""

_QUALITIES = """
Amber Azure Crimson Scarlet Golden Silver Ivory Ebony Emerald Indigo Turquoise Magenta Russet Olive Teal Mauve Maroon
Silent Gentle Clever Brave Eager Humble Lively Merry Nimble Quiet Rapid Sturdy Tender Upright Vivid Wary Witty Zealous
Ancient Modern Northern Southern Eastern Western Polar Tropical Coastal Desert Alpine Urban Rural Royal Noble Civic
Frozen Molten Misty Stormy Sunny Cloudy Windy Rainy Snowy Frosty Dusty Sandy Rocky Leafy Grassy Mossy Thorny Smoky
Hidden Woodland Narrow Broad Lofty Level Steep Winding Crooked Slanted Curved Pointed Rounded Twisted Woven Painted
Polished Rugged Rustic Shining Gleaming Glowing Sparkling Fading Drifting Floating Soaring Roaming Wandering Resting
Sleeping Waking Dancing Singing Humming Whistling Roaring Laughing Smiling Thinking Dreaming Patient Careful Cautious
Curious Diligent Faithful Generous Graceful Honest Jolly Kindly Loyal Mellow Modest Peaceful Playful Proud Serene
Solemn Stately Steady Thrifty Tranquil Truthful Vigilant Youthful Distant Nearby Early Late Double Triple Lone Twin
Second Outer Inner Upper Lower Central Lateral Final
"""
QUALITIES: tuple[str, ...] = tuple(_QUALITIES.split())
"""First words of two-word names, used where single names run out."""

_SURNAMES = """
Abernathy Bexley Carrow Dunmore Ellery Farnham Garrick Hollis Ingram Jessop Kendrick Lomax Marlow Norwood Oakley
Pembroke Quigley Redfern Selwyn Thornley Upton Varley Whitlock Yardley Zeller Ashdown Brockway Calloway Dempster Eastman
Fairfax Goodwin Haverford Isham Jarvis Kimball Langdon Merrick Newcombe Osgood Prescott Quimby Rutledge Stanhope
Tolliver Underhill Vickers Wexford Yeats Atwater Bancroft Chadwick Drummond Emsley Fulbright Gresham Hathaway Ives
"""
SURNAMES: tuple[str, ...] = tuple(_SURNAMES.split())
"""People who do something that is counted or told apart."""

_TOWNS = """
Tarnwick Ostrava Bergen Cadiz Trieste Aarhus Tampere Utrecht Ghent Basel Graz Linz Turin Parma Siena Malaga Toledo Porto
Braga Rennes Nantes Dijon Lille Bruges Leiden Delft Bremen Kassel Erfurt Rostock Gdansk Poznan Lublin Brno Kosice Pecs
Szeged Varna Plovdiv Zadar Maribor Turku Oulu Malmo Uppsala Odense Galway Limerick Durham Exeter Norwich
Lincoln Chester Dover Penrith Kendal Whitby Ludlow Halden Molde Narvik Visby Falun Ystad Vaasa Pori Tartu Narva Liepaja
Kaunas Grodno Lviv Odessa Iasi Cluj Brasov Nis Mostar Bitola Ohrid Patras Volos Izmir Bursa Konya Adana Tbilisi Batumi
"""
TOWNS: tuple[str, ...] = tuple(_TOWNS.split())
"""Places that somebody may work in."""
