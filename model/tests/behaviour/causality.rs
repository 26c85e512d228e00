//! Nothing flows backwards in time or between the rows of a batch.

use csa2_model::attention::Phase;

use super::common::small::{self, MIXES, VOCABULARY};
use super::{PHASES, logit_rows, model, tokens};

/// Which queries of the first batch row change when its token `t` does; those of the second row never may.
fn changed(
    model: &csa2_model::model::Model,
    config: &csa2_model::config::ModelConfig,
    seq: usize,
    t: usize,
    phase: Phase,
) -> Vec<usize> {
    let mut ids = tokens([2, seq]);
    let before = logit_rows(model, config, &ids, [2, seq], phase);
    ids[t] = (ids[t] + 1) % VOCABULARY as i32;
    let after = logit_rows(model, config, &ids, [2, seq], phase);
    assert_eq!(before[seq..], after[seq..], "{} {phase:?}: the other row of the batch", config.layers);
    (0..seq).filter(|&row| before[row] != after[row]).collect()
}

#[test]
fn a_token_changes_nothing_before_it() {
    for mix in MIXES {
        let config = small::config(mix);
        let model = model(&config);
        for phase in PHASES {
            for seq in [1, 2, 5, 9, 13] {
                for t in 0..seq {
                    let changed = changed(&model, &config, seq, t, phase);
                    assert_eq!(changed.first(), Some(&t), "{mix} {phase:?}, {seq} tokens, token {t}");
                }
            }
        }
    }
}

#[test]
fn a_window_reaches_as_far_as_it_is_wide() {
    let config = small::config("swa");
    let model = model(&config);
    assert_eq!(changed(&model, &config, 12, 4, Phase::Sparse), [4, 5, 6]);
    let twice = small::config("swa*2");
    assert_eq!(changed(&super::model(&twice), &twice, 12, 4, Phase::Sparse), [4, 5, 6, 7, 8]);
}

#[test]
fn an_unlimited_window_and_visible_entries_reach_the_end() {
    for (mix, phase) in [("dense", Phase::Sparse), ("full", Phase::Dense)] {
        let config = small::config(mix);
        assert_eq!(changed(&model(&config), &config, 12, 4, phase), (4..12).collect::<Vec<_>>(), "{mix}");
    }
}

#[test]
fn a_group_is_seen_once_its_last_token_has_passed() {
    let config = csa2_model::config::ModelConfig { window: 1, ..small::config("full@4") };
    let model = model(&config);
    let changed = |t| changed(&model, &config, 10, t, Phase::Dense);
    // Token 1 lies in the first group of four, which token 3 completes.
    assert_eq!(changed(1), [1, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(changed(3), [3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(changed(4), [4, 7, 8, 9]);
    // Tokens 8 and 9 wait for a group that is never completed.
    assert_eq!(changed(8), [8]);
}

#[test]
fn a_longer_text_begins_like_a_shorter_one() {
    for mix in MIXES {
        let config = small::config(mix);
        let model = model(&config);
        for phase in PHASES {
            let run = |seq: usize| {
                small::floats(
                    small::forward(&model, &config, &tokens([1, 13])[..seq], [1, seq], |cx| cx.with_phase(phase))
                        .logits,
                )
            };
            let whole = run(13);
            for seq in [1, 3, 6, 10] {
                for (a, b) in run(seq).iter().zip(&whole) {
                    assert!((a - b).abs() < 1e-4, "{mix} {phase:?}, {seq} tokens: {a} against {b}");
                }
            }
        }
    }
}

#[test]
fn a_row_alone_computes_as_in_a_batch() {
    for mix in MIXES {
        let config = small::config(mix);
        let model = model(&config);
        let ids = tokens([3, 9]);
        let run = |ids: &[i32]| small::floats(small::forward(&model, &config, ids, [ids.len() / 9, 9], |cx| cx).logits);
        let alone: Vec<f32> = ids.chunks(9).flat_map(run).collect();
        for (a, b) in run(&ids).iter().zip(&alone) {
            assert!((a - b).abs() < 1e-4, "{mix}: {a} against {b}");
        }
    }
}
