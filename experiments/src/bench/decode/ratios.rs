//! What follows from the figures.

use super::{DENSE, FULL, Found, Measured, Row};
use crate::bench::Ratio;
use crate::report::context_label;

/// The context that the longest one is held against, where it was measured; else the shortest.
const BASE: u64 = 16 << 10;

/// All that can be told of these figures.
pub fn all(found: &Found) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    let Some((&shortest, &longest)) = found.contexts.first().zip(found.contexts.last()) else { return ratios };
    let base = if found.contexts.contains(&BASE) { BASE } else { shortest };
    let mut add = |what: String, value: Option<f64>| ratios.extend(value.map(|value| Ratio { what, value }));
    let mix = |key: &str| found.mixes.iter().find(|mix| mix.key == key);
    let ends = |mix: &Measured| Some((mix.at(base)?.clone(), mix.at(longest)?.clone()));
    let labels = [longest, base].map(context_label);
    let grown = |what: &str| format!("{what}, {} over {}", labels[0], labels[1]);
    if base < longest
        && let Some((subject, (short, long))) = found.mixes.first().and_then(|mix| Some((mix, ends(mix)?)))
    {
        let time = |row: &Row, modes: &[&str]| {
            modes.iter().filter_map(|mode| Some(row.modes.get(mode)?.quartile)).sum::<f64>()
        };
        for (name, modes) in [
            ("reuse and reindex layers", &["reuse", "reindex"][..]),
            ("swa layers, of which nothing grows", &["swa"]),
            ("full layers", &["full"]),
        ] {
            add(grown(&format!("{}, time of {name}", subject.name)), divided(time(&long, modes), time(&short, modes)));
        }
        add(grown(&format!("{}, scored entries", subject.name)), divided(long.scored as f64, short.scored as f64));
        for mix in &found.mixes {
            let token = ends(mix).and_then(|(short, long)| divided(long.token.quartile, short.token.quartile));
            add(grown(&format!("{}, time of a token", mix.name)), token);
        }
    }
    let subject = found.mixes.first().and_then(|mix| Some((&mix.name, mix.at(longest)?.token.quartile)));
    for key in [FULL, DENSE] {
        if let (Some(other), Some((name, own))) = (mix(key), subject) {
            let token = other.at(longest).and_then(|row| divided(row.token.quartile, own));
            add(format!("time of a token at {}, {} over {name}", labels[0], other.name), token);
        }
    }
    let heads = found.scoring.first().map(|scoring| scoring.heads);
    let scoring = |entries: u64| found.scoring.iter().find(|each| (Some(each.heads), each.entries) == (heads, entries));
    if let Some((short, long)) = scoring(base).zip(scoring(longest)).filter(|_| base < longest) {
        let each = |seconds: f64, entries: u64| seconds / entries as f64;
        let (long, short) = (each(long.seconds.quartile, long.entries), each(short.seconds.quartile, short.entries));
        add(grown("scoring packed keys, time of an entry"), divided(long, short));
    }
    let copying = f64::midpoint(found.copying[0], found.copying[1]);
    add(
        "rate of scoring packed keys over that of copying".into(),
        scoring(longest).and_then(|s| divided(s.rate(), copying)),
    );
    for growth in &found.memory {
        if let (Ok(figures), Some(mix)) = (&growth.figures, mix(growth.mix)) {
            for (what, value) in [("filling caches", figures.made_up), ("filling caches and decoding", figures.decoded)]
            {
                add(
                    format!("{}, growth of resident memory over bytes held, {what}", mix.name),
                    divided(value, figures.bytes),
                );
            }
        }
    }
    ratios
}

/// None where nothing was there to divide by.
fn divided(value: f64, by: f64) -> Option<f64> {
    (by > 0.0).then(|| value / by)
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    fn value(found: &Found, start: &str) -> Option<f64> {
        all(found).iter().find(|ratio| ratio.what.starts_with(start)).map(|ratio| ratio.value)
    }

    #[test]
    fn every_question_has_its_ratio() {
        let found = testing::found();
        for (what, expected) in [
            ("released layout, time of reuse and reindex layers, 512K over 16K", 4.0),
            ("released layout, time of swa layers", 4.0),
            ("released layout, time of full layers", 4.0),
            ("released layout, scored entries, 512K over 16K", 32.0),
            ("dense everywhere, time of a token, 512K over 16K", 200.0),
            ("time of a token at 512K, full everywhere over released layout", 5.0),
            ("time of a token at 512K, dense everywhere over released layout", 50.0),
            ("scoring packed keys, time of an entry, 512K over 16K", 1.0),
            ("rate of scoring packed keys over that of copying", 34.0 * 524_288.0 / 1.6e-3 / 15e9),
            ("released layout, growth of resident memory over bytes held, filling caches", 1.02),
            ("dense everywhere, growth of resident memory over bytes held, filling caches and decoding", 1.03),
        ] {
            let found = value(&found, what).unwrap_or_else(|| panic!("{what}"));
            assert!((found - expected).abs() < 1e-9, "{what}: {found} {expected}");
        }
    }

    #[test]
    fn one_context_grows_nowhere_and_unknown_memory_has_no_ratio() {
        let mut found = testing::found();
        found.contexts = vec![1 << 19];
        found.memory[0].figures = Err("no such file".into());
        assert!(all(&found).iter().all(|ratio| !ratio.what.contains("over 512K")));
        assert_eq!(value(&found, "released layout, growth"), None);
        assert!(value(&found, "full everywhere, growth").is_some());
        // The shortest stands in for 16K.
        found.contexts = vec![8 << 10, 1 << 19];
        found.mixes[0].rows[0].context = 8 << 10;
        assert!(value(&found, "released layout, time of full layers, 512K over 8K").is_some());
    }
}
