//! `csa2 generate`.

use crate::common::{Lab, TINY};

const SHARED: &str = "out/shared/seed-0";

fn lab() -> Lab {
    let lab = Lab::with(TINY);
    lab.ablate().fine();
    lab
}

#[test]
fn a_prompt_is_continued_as_it_comes_and_as_a_document() {
    let lab = lab();
    let plain = ["generate", SHARED, "--tokens", "0 5, 8 1 4", "--max-new", "6"];
    let said = lab.csa2(&plain).fine();
    let ids: Vec<i64> = said.out.split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids.len(), 6, "{said:?}");
    assert!(said.err.contains("prompt: 5 tokens") && said.err.contains("6 new ones, ended by length"), "{said:?}");
    let told = lab.csa2(&[&plain[..], &["--json"]].concat()).fine().json();
    assert_eq!(told["tokens"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect::<Vec<_>>(), ids);
    // Ten tokens are stored, the last one drawn is not: window 4 and one entry of 8 + 8 numbers a token in the full layer, window 4 in the other.
    let bytes = &told["cache_bytes"];
    assert_eq!(
        [&bytes["windows"], &bytes["main_kv"], &bytes["index_keys"]].map(|b| b.as_i64().unwrap()),
        [2 * 4 * 8 * 4, 10 * 8 * 4, 10 * 8 * 4]
    );
    // The first stop ends it, and is told.
    let stop = ids[2].to_string();
    let before: Vec<i64> = ids.iter().copied().take_while(|id| *id != ids[2]).collect();
    let stopped = lab.csa2(&[&plain[..], &["--stop", &stop]].concat()).fine();
    assert_eq!(stopped.out.split_whitespace().map(|id| id.parse::<i64>().unwrap()).collect::<Vec<_>>(), before);
    assert!(stopped.err.contains("ended by stop"), "{stopped:?}");
    // A seed decides what is drawn.
    let drawn =
        |seed: &str| lab.csa2(&[&plain[..5], &["40", "--temperature", "5", "--seed", seed]].concat()).fine().out;
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
}

#[test]
fn what_cannot_be_is_refused() {
    let lab = lab();
    for (arguments, expected) in [
        (&["generate", "nobody", "--tokens", "1"][..], "nobody"),
        (&["generate", SHARED], "no prompt"),
        (&["generate", SHARED, "--tokens", " "], "the prompt is empty"),
        (&["generate", SHARED, "--tokens", "1 99"], "99 is not a token id of this model (0 to 9)"),
        (&["generate", SHARED, "--tokens", "1 -1"], "-1 is not a token id"),
        (&["generate", SHARED, "--prompt", "abc"], "was trained on `mqar`, whose tokens are no text"),
        (&["generate", SHARED, "--tokens", "1", "--temperature=-1"], "temperature -1"),
        (&["generate", SHARED, "--tokens", "1", "--top-p", "0"], "top-p 0"),
        (&["generate", SHARED, "--tokens", "1", "--max-tokens", "8", "--max-new", "8"], "more than --max-tokens 8"),
        (&["generate", SHARED, "--tokens", "1", "--max-tokens", "4294967295"], "bytes"),
        (&["generate", SHARED, "--tokens", "1", "--stop", "x"], "--stop \"x\""),
        (&["generate", SHARED, "--tokens", "1", "--stop", "999"], "--stop 999: no such token; ids go from 0 to "),
        (&["generate", SHARED, "--prompt-file", "nothing.txt"], "whose tokens are no text; give token ids by --tokens"),
    ] {
        let message = lab.csa2(arguments).refused();
        assert!(message.contains(expected), "{expected}: {message}");
    }
}
