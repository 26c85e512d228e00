use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn task(config: &TwohopConfig) -> Twohop {
    config.build(Path::new("")).unwrap()
}

/// Follower and place of each first token of a pair in the region, as a reader finds them.
fn links_shown(config: &TwohopConfig, tokens: &[i32]) -> BTreeMap<i32, (i32, usize)> {
    let mut links = BTreeMap::new();
    for place in (0..config.region - 1).step_by(2) {
        if tokens[place] < 2 * config.symbols as i32 {
            let link = (tokens[place + 1], place);
            assert!(links.insert(tokens[place], link).is_none(), "shown twice");
        } else {
            let fillers = 3 * config.symbols as i32;
            assert!(tokens[place] >= fillers && tokens[place + 1] >= fillers);
        }
    }
    links
}

fn check_batch(task: &Twohop, batch: &Batch) {
    let config = &task.config;
    let vocabulary = |token: i32| token / config.symbols as i32;
    let hints = batch.hint_targets.as_deref().unwrap();
    for row in 0..batch.rows {
        let tokens = &batch.tokens[row * batch.len..(row + 1) * batch.len];
        let links = links_shown(config, tokens);
        assert_eq!(links.len(), 2 * config.chains);
        for (token, (next, place)) in &links {
            assert_eq!(vocabulary(*next), vocabulary(*token) + 1);
            if config.ordered && vocabulary(*token) == 0 {
                assert!(links[next].1 > *place, "(b, c) comes after (a, b)");
            }
        }
        for at in 0..batch.len {
            let flat = row * batch.len + at;
            let found = (batch.targets[flat], hints[flat], batch.tags[flat]);
            let distance = |b: i32| (at - links[&b].1 - 1) as i32;
            if at < config.region + config.gap {
                assert_eq!(found, (NONE, NONE, NONE));
                assert_eq!(batch.distances[flat], NONE);
            } else if vocabulary(tokens[at]) == 0 {
                let b = links[&tokens[at]].0;
                assert_eq!(found, (links[&b].0, b, TWO_HOP));
                assert_eq!(batch.distances[flat], distance(b), "from the end of the chain");
            } else {
                assert_eq!(vocabulary(tokens[at]), 1);
                assert_eq!(found, (links[&tokens[at]].0, NONE, ONE_HOP));
                assert_eq!(batch.distances[flat], distance(tokens[at]));
            }
        }
    }
}

prop_compose! {
    fn any_config()(
        chains in 1..6_usize,
        [more, spare, gap, queries] in prop::array::uniform4(0..20_usize),
        two_hop_share in 0.01..1.0,
        ordered: bool,
    ) -> TwohopConfig {
        TwohopConfig {
            symbols: chains + more,
            chains,
            region: 4 * chains + spare,
            gap,
            queries: queries + 1,
            two_hop_share,
            ordered,
            eval_sequences: 3,
            ..TwohopConfig::default()
        }
    }
}

proptest! {
    #[test]
    fn every_query_can_be_answered(config in any_config(), seed: u64, step: u64) {
        let task = task(&config);
        check_batch(&task, &task.train_batch(seed, step, 3));
        check_batch(&task, &task.eval_batch(0, 3));
    }
}

#[test]
fn recipe_size() {
    let task = task(&TwohopConfig::default());
    assert_eq!((task.seq_len(), task.vocab_size()), (64, 56));
    let auxiliary = task.auxiliary().unwrap();
    assert_eq!((auxiliary.after_layer, auxiliary.weight.to_bits()), (1, 1_f64.to_bits()));
    assert_eq!(task.metric_tag(), Some("two-hop"));
    assert_eq!(task.tags()[TWO_HOP as usize], "two-hop");
    assert_eq!(task.tags()[ONE_HOP as usize], "one-hop");
    let tags = task.eval_batch(0, 512).tags;
    let share = |tag| tags.iter().filter(|t| **t == tag).count() as f64 / (512.0 * 16.0);
    // Standard deviation 0.005.
    assert!((share(TWO_HOP) - 0.7).abs() < 0.02 && (share(ONE_HOP) - 0.3).abs() < 0.02);
}

#[test]
fn both_orders_of_the_links_occur_unless_ordered() {
    let config = TwohopConfig::default();
    let batch = task(&config).train_batch(0, 0, 50);
    let mut first_link_first = 0;
    for tokens in batch.tokens.chunks(batch.len) {
        let links = links_shown(&config, tokens);
        let of_a = links.iter().filter(|(token, _)| **token < 16);
        first_link_first += of_a.filter(|(_, (b, place))| links[b].1 > *place).count();
    }
    // 300 chains: 150 expected, standard deviation 9.
    assert!((110..190).contains(&first_link_first), "{first_link_first}");
}

#[test]
fn weight_zero_leaves_the_head_out_and_nothing_else() {
    let with = task(&TwohopConfig::default());
    let without = task(&TwohopConfig { hint_weight: 0.0, ..TwohopConfig::default() });
    assert_eq!(without.auxiliary(), None);
    let (one, mut other) = (without.train_batch(3, 4, 2), with.train_batch(3, 4, 2));
    assert!(one.hint_targets.is_none() && other.hint_targets.take().is_some());
    assert_eq!(one, other);
}

#[test]
fn other_lengths_change_the_gap_alone() {
    let config = TwohopConfig::default();
    for tokens in [56, 64, 512] {
        let stretched = config.stretched(tokens).unwrap();
        assert_eq!(task(&stretched).seq_len(), tokens);
        assert_eq!(TwohopConfig { gap: config.gap, ..stretched }, config);
    }
    let error = config.stretched(55).unwrap_err().to_string();
    assert!(error.contains("`region` 40 and `queries` 16 stay as they are, so there are at least 56"), "{error}");
}

#[test]
fn values_that_cannot_be_are_named() {
    for (values, message) in [
        ("chains = 0", "`chains` is 0; it must be from 1"),
        ("symbols = 5", "`chains` is 6, but there are only 5"),
        ("region = 23", "`region` is 23; 6 chains of two pairs of 2 tokens need at least 24"),
        ("two_hop_share = 0", "`two_hop_share` is 0; it must be above 0"),
        ("two_hop_share = nan", "`two_hop_share` is NaN"),
        ("two_hop_share = 1.5", "`two_hop_share` is 1.5"),
        ("hint_weight = -1", "`hint_weight` is -1; it must be a finite number, 0"),
        ("hint_weight = inf", "`hint_weight` is inf"),
    ] {
        let config: TwohopConfig = toml::from_str(values).unwrap();
        let error = config.build(Path::new("")).err().unwrap().to_string();
        assert!(error.contains("task `twohop`: ") && error.contains(message), "{error}");
    }
    let tight: TwohopConfig = toml::from_str("region = 24").unwrap();
    assert!(tight.build(Path::new("")).is_ok());
}
