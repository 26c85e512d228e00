//! What can be wrong with a layer mix, and what would be right.

use thiserror::Error;

use super::{MAX_LAYERS, MAX_RATIO, Mode};

/// Widest stretch of the mix that an error message quotes, in characters.
const QUOTE: usize = 72;

/// A layer mix that does not describe a network.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MixError {
    /// The text is not a sentence of the layer-mix language.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// A `reuse` or `reindex` layer has no `full` layer below it.
    #[error(
        "layer {layer} (`{mode}`) has no `full` layer below it, so there is no content to read; \
         put a `full` before it, or write `swa` for a layer that reads its window alone"
    )]
    NoContent {
        /// Index of the layer, from 0.
        layer: usize,
        /// Its mode.
        mode: Mode,
    },
    /// A `stale` layer has no `full` or `reindex` layer below it.
    #[error(
        "layer {layer} (`stale`) has no `full` or `reindex` layer below it, so there is no address to read; \
         put one of them before it"
    )]
    NoAddress {
        /// Index of the layer, from 0.
        layer: usize,
    },
    /// A `stale` layer compresses at another ratio than the source of the address that it reads.
    #[error(
        "layer {layer} (`stale`) has ratio {ratio} but reads the address of layer {source_layer}, whose ratio is {source_ratio}: \
         entry numbers would mean other positions; write `stale@{source_ratio}`"
    )]
    StaleRatio {
        /// Index of the `stale` layer, from 0.
        layer: usize,
        /// Its own ratio.
        ratio: usize,
        /// The layer whose address it reads.
        source_layer: usize,
        /// The ratio of that layer.
        source_ratio: usize,
    },
    /// A mode that the id-list form cannot say.
    #[error(
        "layer {layer} (`{mode}`) has no id-list form: `compress_ratios` and the source ids know only \
         swa, full, reindex and reuse; keep this mix as text, or replace the layer"
    )]
    NotInIds {
        /// Index of the layer, from 0.
        layer: usize,
        /// Its mode.
        mode: Mode,
    },
    /// More pools than the id-list form can say.
    #[error(
        "layers {first} and {second} both build a candidate pool, but the id-list form has one `candidate_source_layer_id`; \
         keep this mix as text, or drop one `+pool`"
    )]
    ManyPools {
        /// Index of the first pool builder, from 0.
        first: usize,
        /// Index of the second pool builder, from 0.
        second: usize,
    },
    /// The id lists contradict themselves.
    #[error(transparent)]
    Ids(#[from] IdsError),
}

/// Id lists that contradict themselves.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IdsError {
    /// There is no layer.
    #[error("`compress_ratios` is empty; it must hold one ratio per layer")]
    Empty,
    /// More layers than a mix may have.
    #[error("`compress_ratios` has {layers} entries; a mix has at most {MAX_LAYERS} layers")]
    TooMany {
        /// Entries found.
        layers: usize,
    },
    /// The ratios do not cover the layers.
    #[error("`compress_ratios` has {ratios} entries but there are {layers} layers; it must hold one ratio per layer")]
    Length {
        /// Entries found.
        ratios: usize,
        /// Layers that the model says it has.
        layers: usize,
    },
    /// A ratio beyond what the language allows.
    #[error("`compress_ratios` gives layer {layer} the ratio {ratio}; the largest ratio is {MAX_RATIO}")]
    RatioTooLarge {
        /// Index of the layer, from 0.
        layer: usize,
        /// Its ratio.
        ratio: usize,
    },
    /// An id that is no layer.
    #[error("`{list}` names layer {id}, but the layers are 0 to {last}")]
    OutOfRange {
        /// The list.
        list: &'static str,
        /// The id found.
        id: usize,
        /// The last layer.
        last: usize,
    },
    /// Ids that do not ascend.
    #[error("`{list}` has {id} after {before}; its ids must ascend, each once")]
    NotAscending {
        /// The list.
        list: &'static str,
        /// The id before.
        before: usize,
        /// The id that should have been larger.
        id: usize,
    },
    /// A source that compresses nothing.
    #[error("`{list}` names layer {layer}, whose entry in `compress_ratios` is 0; a source needs a ratio of 1 or more")]
    SourceWithoutRatio {
        /// The list.
        list: &'static str,
        /// Index of the layer, from 0.
        layer: usize,
    },
    /// Content without an address.
    #[error(
        "layer {layer} is in `kv_source_layer_ids` but not in `index_source_layer_ids`; \
         a layer with its own content has its own indexer, so it must be in both"
    )]
    ContentWithoutIndex {
        /// Index of the layer, from 0.
        layer: usize,
    },
    /// An indexer that has no keys to score.
    #[error(
        "layer {layer} is in `index_source_layer_ids`, but no layer at or below it is in `kv_source_layer_ids`; \
         an indexer scores the keys of a content source"
    )]
    IndexWithoutContent {
        /// Index of the layer, from 0.
        layer: usize,
    },
    /// A follower that has nothing to follow.
    #[error(
        "`compress_ratios` gives layer {layer} the ratio {ratio}, but no layer at or below it is in `kv_source_layer_ids`; \
         use 0 for a layer that reads its window alone"
    )]
    FollowerWithoutContent {
        /// Index of the layer, from 0.
        layer: usize,
        /// Its ratio.
        ratio: usize,
    },
    /// A follower with another ratio than its source.
    #[error(
        "`compress_ratios` gives layer {layer} the ratio {ratio}, but it reads the content of layer {source_layer}, whose ratio is {source_ratio}; \
         the two must be equal"
    )]
    RatioDiffers {
        /// Index of the follower, from 0.
        layer: usize,
        /// Its ratio.
        ratio: usize,
        /// The layer whose content it reads.
        source_layer: usize,
        /// The ratio of that layer.
        source_ratio: usize,
    },
    /// A pool builder without keys of its own.
    #[error(
        "`candidate_source_layer_id` is {layer}, which is not in `kv_source_layer_ids`; only a `full` layer builds a pool"
    )]
    CandidateNotSource {
        /// The id found.
        layer: usize,
    },
}

/// A fault in the text of a layer mix. Its `Display` quotes the text with a caret under the fault.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", self.render())]
pub struct SyntaxError {
    pub(super) text: String,
    pub(super) column: usize,
    pub(super) wrong: String,
    pub(super) right: String,
}

impl SyntaxError {
    /// Where the fault is: the character's number, from 1.
    pub fn column(&self) -> usize {
        self.column
    }

    fn render(&self) -> String {
        let Self { column, wrong, right, .. } = self;
        let (quote, caret) = self.quote();
        let space = " ".repeat(caret);
        format!("layer mix, column {column}: {wrong}\n    {quote}\n    {space}^\n{right}")
    }

    /// The text around the fault as one line, and how many characters of it stand before the fault.
    fn quote(&self) -> (String, usize) {
        // A line break or a tab inside the quote would move the caret away from the fault.
        let chars: Vec<char> =
            self.text.chars().map(|c| if c.is_whitespace() || c.is_control() { ' ' } else { c }).collect();
        let at = self.column.saturating_sub(1).min(chars.len());
        let start = if chars.len() <= QUOTE { 0 } else { at.saturating_sub(QUOTE / 2) };
        let end = chars.len().min(start + QUOTE);
        let before = if start > 0 { "..." } else { "" };
        let after = if end < chars.len() { "..." } else { "" };
        let shown: String = chars.iter().take(end).skip(start).collect();
        (format!("{before}{shown}{after}"), before.len() + at - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str, column: usize) -> SyntaxError {
        SyntaxError { text: text.into(), column, wrong: "wrong".into(), right: "right".into() }
    }

    #[test]
    fn caret_stands_under_the_column() {
        let shown = error("swa\tfull\nreuse", 10).to_string();
        assert_eq!(shown, "layer mix, column 10: wrong\n    swa full reuse\n             ^\nright");
    }

    #[test]
    fn a_long_text_is_quoted_around_the_fault() {
        let text = format!("{}X{}", "swa ".repeat(50), " swa".repeat(50));
        let shown = error(&text, 201).to_string();
        let lines: Vec<&str> = shown.lines().collect();
        let caret = lines[2].find('^').unwrap();
        assert_eq!(lines[1].chars().nth(caret), Some('X'));
        assert!(lines[1].chars().count() <= 4 + QUOTE + 6);
    }

    #[test]
    fn a_fault_at_the_end_points_past_the_text() {
        assert!(error("full@", 6).to_string().contains("    full@\n         ^\n"));
    }
}
