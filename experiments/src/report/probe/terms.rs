//! The names and meanings of a probe's measures: one name each, in tables, pictures and the glossary.

use crate::probe::{HEAD, LAYER};

/// What every measure is called where that is not its name in the files.
const TITLES: [(&str, &str); 10] = [
    ("entries", "points"),
    ("unreachable", "not reached"),
    ("effective_entries", "effective points"),
    ("overlap", "best entries read"),
    ("hull_distance_elsewhere", "distance, other query"),
    ("hull_distance_gain", "nearer by"),
    ("output_difference", "output differs"),
    ("tilt_cosine_mean", "shared directions, mean"),
    ("tilt_cosine_smallest", "shared directions, smallest"),
    ("repair_kl", "not repaired"),
];

/// What a measure is called.
pub fn title(name: &str) -> String {
    TITLES.iter().find(|(key, _)| *key == name).map_or_else(|| name.replace('_', " "), |(_, title)| (*title).to_owned())
}

/// The columns of the table.
pub const COLUMNS: [&str; 11] = [
    "entries",
    "affine_rank",
    "unreachable",
    "effective_entries",
    "mass_missed",
    "overlap",
    "outside_hull",
    "hull_distance",
    "hull_distance_elsewhere",
    "hull_distance_gain",
    "output_difference",
];

/// Columns that a terminal has no room for.
pub const TOLD_BELOW: [&str; 3] = ["unreachable", "hull_distance_elsewhere", "output_difference"];

/// Of the columns, those that compare a layer with its twin.
pub const OF_TWIN: [&str; 5] =
    ["outside_hull", "hull_distance", "hull_distance_elsewhere", "hull_distance_gain", "output_difference"];

/// Measures that are shares of something, and told in percent.
pub const SHARES: [&str; 7] =
    ["mass_window", "mass_selected", "mass_sink", "mass_missed", "overlap", "outside_hull", "weights_apart"];

/// What a reader has to know before the numbers, as pairs of a word and its meaning.
pub const WORDS: [(&str, &str); 7] = [
    (
        "content, address",
        "Content: the latent entries that a layer can read, one a token (or one for every m tokens, where a full layer is called full@m), key and \
         value in one. Address: which of them a query does read, the Top-K that an indexer chose.",
    ),
    (
        "full, reindex, reuse",
        "A full layer makes content and address; reindex makes an address in the content of a full layer before it; reuse takes both as they \
         are. Every layer has queries and a small window of its own.",
    ),
    ("numbers", "Layers are counted from 0. Layers without entries (swa, dense) are left out."),
    (
        "points",
        "What one query reads: the tokens of its window, the selected entries, and the sink, which acts as a point at the origin. Its output is \
         a mean of these points with positive weights, so it lies in their hull (all such means), whatever the query.",
    ),
    (
        "coordinates",
        "Which direction of a vector stands for what: that is learned, so two layers can hold the same in vectors that have nothing in common. Distances \
         mean something where coordinates are shared.",
    ),
    (
        "twin",
        "With --twin: the layer of the same number of that run, given the input that this run's layer is given. It makes content, address and \
         query itself. It was not trained on these inputs, and has coordinates of its own. Without --twin: the layer itself at an address of its \
         own, the K entries that an exact search with its queries finds.",
    ),
    (
        "±",
        "Half the 95% interval of the mean over sequences; without it the value is the same in all of them. It says nothing of other runs: those \
         of other seeds have to be probed for that.",
    ),
];

/// Measures that are not of a single layer or head, and those that compare.
const MORE: [(&str, &str); 12] = [
    (
        "overlap",
        "of the K entries with the most attention, summed over heads, the share that the layer reads; only queries that see more than K entries \
         count.",
    ),
    (
        "outside_hull",
        "share of the twin's outputs that are outside the hull of the layer's points: no query reaches them.",
    ),
    (
        "hull_distance",
        "distance of the twin's output from that hull, divided by the length of the twin's output: 0 inside, and at most 1, for the sink puts \
         the origin into the hull.",
    ),
    (
        "hull_distance_elsewhere",
        "the same for what the twin reads for another sampled query of the sequence: the distance where nothing that is asked for is in reach, unless \
         both happen to ask for the same.",
    ),
    (
        "hull_distance_gain",
        "the distance for another query, minus the hull distance, query by query; larger: more of what this query asks for is in reach.",
    ),
    (
        "output_difference",
        "distance of the twin's output from what the layer itself reads, divided by the length of the twin's output; 0: the same; two \
         unrelated vectors of one length are 1.41 apart.",
    ),
    (
        "tilt_cosine_mean",
        "whether queries of the layer and of the twin can change the weights of the same tokens and entries in the same directions: cosines of the \
         principal angles between the two spaces of such changes, 1 where both can do the same. Only with a twin run.",
    ),
    ("tilt_cosine_smallest", "the smallest of these cosines."),
    (
        "repair_kl",
        "how far the twin's weights over the same entries are from the nearest ones that a query of the layer makes, in nats of KL; 0: a query makes \
         them. Only with a twin run.",
    ),
    (
        "operator_difference",
        "distance between what the network's own operator read, in 32 bits, and what is computed here in 64, divided by the length: the check \
         that both look at the same numbers.",
    ),
    (
        "output_cosine",
        "cosine between what two layers with one address add to the residual stream for one token, each through its own output projection.",
    ),
    (
        "weights_apart",
        "half the sum of absolute differences between the weights of two such layers on the same points, both averaged over heads: 0 the same, \
         100% nothing in common.",
    ),
];

/// Every measure in words: what it is called, with its name in the files where that differs, and what it is.
pub fn glossary() -> Vec<(String, String)> {
    let heading = |name: &str| {
        let title = title(name);
        if title == name { title } else { format!("{title} ({name})") }
    };
    let own = LAYER.iter().chain(&HEAD).map(|(name, text)| (heading(name), format!("{text}.")));
    own.chain(MORE.iter().map(|(name, text)| (heading(name), (*text).to_owned()))).collect()
}
