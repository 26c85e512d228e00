//! The parser of the layer-mix language: text to one [`LayerSpec`] per layer.
//!
//! ```text
//! items = item { space item }
//! item  = mode [@ratio] [+pool] [*count]  |  ( items )*count
//! ```
//! Groups are expanded as they close, over an explicit stack, so that no nesting depth can exhaust the call stack
//! and no count can allocate more than [`MAX_LAYERS`] layers.

use super::cursor::Cursor;
use super::{LayerSpec, MAX_LAYERS, MAX_RATIO, Mode, SyntaxError};

/// Reads a whole mix.
///
/// # Errors
/// The first fault of the text, with its column.
pub(super) fn parse(text: &str) -> Result<Vec<LayerSpec>, SyntaxError> {
    let parser = Parser { cursor: Cursor::new(text), layers: Vec::new(), open: Vec::new() };
    parser.run()
}

/// A bracket that waits for its partner.
struct Open {
    /// Where the bracket stands in the text.
    at: usize,
    /// How many layers had been read before it.
    start: usize,
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    layers: Vec<LayerSpec>,
    open: Vec<Open>,
}

impl Parser<'_> {
    fn run(mut self) -> Result<Vec<LayerSpec>, SyntaxError> {
        while let Some(next) = self.cursor.peek() {
            match next {
                c if c.is_whitespace() => self.cursor.at += 1,
                '(' => {
                    self.open.push(Open { at: self.cursor.at, start: self.layers.len() });
                    self.cursor.at += 1;
                }
                ')' => self.close()?,
                _ => self.item()?,
            }
        }
        if let Some(open) = self.open.last() {
            return Err(self.cursor.fault(
                open.at,
                "this bracket is never closed",
                "close the group with `)` and a count, for example `(full reuse*5)*3`",
            ));
        }
        if self.layers.is_empty() {
            return Err(self.cursor.fault(
                0,
                "the mix is empty",
                "write at least one layer, for example `swa full reuse*2`",
            ));
        }
        Ok(self.layers)
    }

    /// `)*count`: repeats the layers since the matching bracket.
    fn close(&mut self) -> Result<(), SyntaxError> {
        let at = self.cursor.at;
        self.cursor.at += 1;
        let Some(open) = self.open.pop() else {
            return Err(self.cursor.fault(
                at,
                "this bracket closes nothing",
                "remove it, or open the group with `(` before it",
            ));
        };
        if open.start == self.layers.len() {
            return Err(self.cursor.fault(
                open.at,
                "this group is empty",
                "put layers between the brackets, for example `(full reuse*5)*3`",
            ));
        }
        if self.cursor.peek() != Some('*') {
            return Err(self.cursor.fault(
                self.cursor.at,
                "a group needs a count",
                "write the count straight after the bracket, for example `(full reuse*5)*3`",
            ));
        }
        self.repeat(open.start)?;
        self.end_of_item()
    }

    /// `mode [@ratio] [+pool] [*count]`.
    fn item(&mut self) -> Result<(), SyntaxError> {
        let mode = self.mode()?;
        let ratio = if self.cursor.peek() == Some('@') { self.ratio(mode)? } else { usize::from(mode.takes_ratio()) };
        let pool = self.cursor.peek() == Some('+');
        if pool {
            self.pool(mode)?;
        }
        let start = self.layers.len();
        if start == MAX_LAYERS {
            return Err(self.too_many(self.cursor.at.saturating_sub(1)));
        }
        self.layers.push(LayerSpec { mode, ratio, pool });
        if self.cursor.peek() == Some('*') {
            self.repeat(start)?;
        }
        self.end_of_item()
    }

    fn mode(&mut self) -> Result<Mode, SyntaxError> {
        let at = self.cursor.at;
        let word = self.cursor.word();
        if word.is_empty() {
            let found = self.cursor.peek().map_or_else(String::new, |c| c.to_string());
            return Err(self.cursor.fault(
                at,
                &format!("`{found}` cannot begin a layer"),
                &format!(
                    "a layer begins with its mode ({MODES}); `@ratio`, `+pool` and `*count` follow it without a space"
                ),
            ));
        }
        let found = Mode::ALL.into_iter().find(|mode| mode.name() == word);
        found.ok_or_else(|| {
            self.cursor.fault(
                at,
                &format!("unknown mode `{word}`"),
                &format!("the modes are {MODES}, in small letters"),
            )
        })
    }

    /// `@ratio`, allowed where a layer has a compressor of its own.
    fn ratio(&mut self, mode: Mode) -> Result<usize, SyntaxError> {
        let sign = self.cursor.at;
        self.cursor.at += 1;
        if !mode.takes_ratio() {
            let right = match mode {
                Mode::Reuse | Mode::Reindex => {
                    format!("`{mode}` takes the ratio of the `full` that it reads; write the ratio there")
                }
                _ => format!("`{mode}` compresses nothing; leave the ratio out"),
            };
            return Err(self.cursor.fault(sign, &format!("`{mode}` takes no ratio"), &right));
        }
        let at = self.cursor.at;
        match self.cursor.number() {
            None => Err(self.cursor.fault(
                at,
                "the ratio's number is missing",
                &format!("write a whole number after `@`, for example `{mode}@2`"),
            )),
            Some(0) => Err(self.cursor.fault(
                at,
                "ratio 0 compresses nothing",
                &format!("write a ratio from 1 to {MAX_RATIO}, or `swa` for a layer that reads its window alone"),
            )),
            Some(ratio) if ratio > MAX_RATIO => {
                Err(self.cursor.fault(at, "the ratio is too large", &format!("write a ratio from 1 to {MAX_RATIO}")))
            }
            Some(ratio) => Ok(ratio),
        }
    }

    /// `+pool`, allowed on `full` alone.
    fn pool(&mut self, mode: Mode) -> Result<(), SyntaxError> {
        let sign = self.cursor.at;
        self.cursor.at += 1;
        let at = self.cursor.at;
        let word = self.cursor.word();
        if word != "pool" {
            return Err(self.cursor.fault(at, &format!("unknown addition `+{word}`"), "the only addition is `+pool`"));
        }
        if mode != Mode::Full {
            return Err(self.cursor.fault(
                sign,
                &format!("a `{mode}` layer cannot build a candidate pool"),
                "only a `full` layer can: write `full+pool`; the `reindex` layers that read it search inside its pool",
            ));
        }
        Ok(())
    }

    /// `*count`: brings the layers from `start` on to `count` copies.
    fn repeat(&mut self, start: usize) -> Result<(), SyntaxError> {
        self.cursor.at += 1;
        let at = self.cursor.at;
        let Some(count) = self.cursor.number() else {
            return Err(self.cursor.fault(
                at,
                "the count's number is missing",
                "write a whole number after `*`, for example `reuse*3`",
            ));
        };
        if count == 0 {
            return Err(self.cursor.fault(
                at,
                "count 0 means no layer",
                "write a count of 1 or more, or leave the layer out",
            ));
        }
        let once: Vec<LayerSpec> = self.layers.iter().skip(start).copied().collect();
        let total = once.len().checked_mul(count).and_then(|n| n.checked_add(start));
        if total.is_none_or(|total| total > MAX_LAYERS) {
            return Err(self.too_many(at));
        }
        for _ in 1..count {
            self.layers.extend_from_slice(&once);
        }
        Ok(())
    }

    /// After an item: a space, a bracket or the end.
    fn end_of_item(&self) -> Result<(), SyntaxError> {
        let right = match self.cursor.peek() {
            None | Some('(' | ')') => return Ok(()),
            Some(c) if c.is_whitespace() => return Ok(()),
            Some('@') => "the ratio stands straight after the mode: `full@2+pool`, `full@2*3`",
            Some('+') => "`+pool` stands after the ratio and before the count: `full@2+pool`",
            Some('*') => "one count a layer; repeat a group with brackets: `(reuse*2)*3`",
            Some(_) => "separate layers by spaces: `swa*2 full@2 reuse*5`",
        };
        let found = self.cursor.peek().map_or_else(String::new, |c| c.to_string());
        Err(self.cursor.fault(self.cursor.at, &format!("unexpected `{found}`"), right))
    }

    fn too_many(&self, at: usize) -> SyntaxError {
        self.cursor.fault(
            at,
            &format!("the mix grows past {MAX_LAYERS} layers here"),
            &format!("keep the whole mix to {MAX_LAYERS} layers"),
        )
    }
}

/// The modes, as messages list them.
const MODES: &str = "swa, full, reindex, reuse, stale, dense";

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole message of a mix that must not parse.
    fn message(text: &str) -> String {
        parse(text).expect_err("must be refused").to_string()
    }

    #[test]
    fn groups_and_counts_expand() {
        let modes = |text: &str| parse(text).unwrap().iter().map(|spec| spec.mode.name()).collect::<Vec<_>>().join(" ");
        assert_eq!(modes("swa*2 (full reuse*2)*2"), "swa swa full reuse reuse full reuse reuse");
        assert_eq!(modes("((full reuse)*2 swa)*2"), "full reuse full reuse swa full reuse full reuse swa");
        assert_eq!(modes("  (full)*1\n\treuse "), "full reuse");
        assert_eq!(modes("swa(full reuse)*2(swa)*1"), "swa full reuse full reuse swa");
    }

    #[test]
    fn ratio_and_pool_are_read() {
        let specs = parse("full@3+pool*2 stale full").unwrap();
        assert_eq!(specs[0], LayerSpec { mode: Mode::Full, ratio: 3, pool: true });
        assert_eq!(specs[0], specs[1]);
        assert_eq!(specs[2], LayerSpec { mode: Mode::Stale, ratio: 1, pool: false });
        assert_eq!(specs[3], LayerSpec { mode: Mode::Full, ratio: 1, pool: false });
    }

    #[test]
    fn unknown_mode() {
        assert_eq!(
            message("swa fulll reuse*2"),
            "layer mix, column 5: unknown mode `fulll`\n    swa fulll reuse*2\n        ^\n\
             the modes are swa, full, reindex, reuse, stale, dense, in small letters"
        );
        assert!(message("SWA").contains("unknown mode `SWA`"));
    }

    #[test]
    fn empty_mix() {
        let expected = "layer mix, column 1: the mix is empty\n    \n    ^\n\
                        write at least one layer, for example `swa full reuse*2`";
        assert_eq!(message(""), expected);
        assert!(message(" \n ").contains("the mix is empty"));
    }

    #[test]
    fn count_zero() {
        assert_eq!(
            message("swa full*0"),
            "layer mix, column 10: count 0 means no layer\n    swa full*0\n             ^\n\
             write a count of 1 or more, or leave the layer out"
        );
        assert!(message("(swa full)*0").starts_with("layer mix, column 12: count 0 means no layer"));
    }

    #[test]
    fn count_without_a_number() {
        assert_eq!(
            message("swa*"),
            "layer mix, column 5: the count's number is missing\n    swa*\n        ^\n\
             write a whole number after `*`, for example `reuse*3`"
        );
    }

    #[test]
    fn unbalanced_brackets() {
        assert_eq!(
            message("swa (full reuse*2"),
            "layer mix, column 5: this bracket is never closed\n    swa (full reuse*2\n        ^\n\
             close the group with `)` and a count, for example `(full reuse*5)*3`"
        );
        assert_eq!(
            message("swa full)*2"),
            "layer mix, column 9: this bracket closes nothing\n    swa full)*2\n            ^\n\
             remove it, or open the group with `(` before it"
        );
    }

    #[test]
    fn empty_group_and_group_without_a_count() {
        assert_eq!(
            message("swa ()*2"),
            "layer mix, column 5: this group is empty\n    swa ()*2\n        ^\n\
             put layers between the brackets, for example `(full reuse*5)*3`"
        );
        assert_eq!(
            message("(full reuse) swa"),
            "layer mix, column 13: a group needs a count\n    (full reuse) swa\n                ^\n\
             write the count straight after the bracket, for example `(full reuse*5)*3`"
        );
    }

    #[test]
    fn bad_ratios() {
        assert_eq!(
            message("full@0"),
            "layer mix, column 6: ratio 0 compresses nothing\n    full@0\n         ^\n\
             write a ratio from 1 to 65536, or `swa` for a layer that reads its window alone"
        );
        assert_eq!(
            message("full@ reuse"),
            "layer mix, column 6: the ratio's number is missing\n    full@ reuse\n         ^\n\
             write a whole number after `@`, for example `full@2`"
        );
        assert_eq!(
            message("full@99999999999999999999999"),
            "layer mix, column 6: the ratio is too large\n    full@99999999999999999999999\n         ^\n\
             write a ratio from 1 to 65536"
        );
        assert!(message("full@-1").contains("the ratio's number is missing"));
        assert!(message("full@1.5").contains("unexpected `.`"));
    }

    #[test]
    fn ratio_on_a_mode_that_takes_none() {
        assert_eq!(
            message("full@2 reuse@2"),
            "layer mix, column 13: `reuse` takes no ratio\n    full@2 reuse@2\n                ^\n\
             `reuse` takes the ratio of the `full` that it reads; write the ratio there"
        );
        assert_eq!(
            message("swa@2"),
            "layer mix, column 4: `swa` takes no ratio\n    swa@2\n       ^\n\
             `swa` compresses nothing; leave the ratio out"
        );
        assert!(message("dense@1").contains("`dense` takes no ratio"));
        assert!(message("full reindex@1").contains("`reindex` takes no ratio"));
    }

    #[test]
    fn pool_on_anything_but_full() {
        assert_eq!(
            message("full reindex+pool"),
            "layer mix, column 13: a `reindex` layer cannot build a candidate pool\n    full reindex+pool\n                ^\n\
             only a `full` layer can: write `full+pool`; the `reindex` layers that read it search inside its pool"
        );
        for mode in ["swa", "reuse", "stale", "dense"] {
            assert!(message(&format!("{mode}+pool")).contains("cannot build a candidate pool"));
        }
        assert_eq!(
            message("full+lake"),
            "layer mix, column 6: unknown addition `+lake`\n    full+lake\n         ^\nthe only addition is `+pool`"
        );
    }

    #[test]
    fn parts_out_of_order() {
        assert!(message("full+pool@2").contains("column 10: unexpected `@`"));
        assert!(message("full*2+pool").contains("column 7: unexpected `+`"));
        assert!(message("full*2*3").contains("one count a layer"));
        assert!(message("swa *2").contains("column 5: `*` cannot begin a layer"));
        assert!(message("swa, full").contains("separate layers by spaces"));
    }

    #[test]
    fn absurd_sizes_are_refused_without_allocating() {
        assert_eq!(
            message("full*1000000000"),
            "layer mix, column 6: the mix grows past 4096 layers here\n    full*1000000000\n         ^\n\
             keep the whole mix to 4096 layers"
        );
        assert!(message("full*99999999999999999999999999").contains("past 4096"));
        assert!(message("((((full*999)*999)*999)*999)*999").contains("past 4096"));
        assert!(message("swa*4096 full").contains("past 4096"));
        assert_eq!(parse("swa*4096").unwrap().len(), 4096);
        let deep = format!("{}swa{}", "(".repeat(100_000), ")*1".repeat(100_000));
        assert_eq!(parse(&deep).unwrap().len(), 1);
    }
}
