//! Evaluations of runs made by hand.

use std::collections::BTreeMap;
use std::path::Path;

use csa2_train::evaluate::evaluate;
use tempfile::TempDir;

use super::*;
use crate::subject::testing::{config, random_weights, save};

fn options(folder: &TempDir) -> Options {
    Options {
        run: folder.path().join("run"),
        task: None,
        base: PathBuf::new(),
        layers: None,
        pool: None,
        pool_override: false,
        switches: Vec::new(),
        contexts: Vec::new(),
        sequences: None,
        batch: 5,
        out: folder.path().join("out"),
        backend: "flex",
        device: Device::flex(),
        command: "csa2 eval".into(),
    }
}

/// A folder with a run of `mix`.
fn made(mix: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let run = config(mix);
    save(&folder.path().join("run"), &run, &random_weights(&run.model, 3));
    folder
}

fn measured(options: &Options) -> Evaluation {
    let plan = plan(options, None).unwrap();
    collect(&plan, "digest".into(), options, &AtomicBool::new(false)).unwrap()
}

fn refused(options: &Options) -> String {
    plan(options, None).err().expect("must be refused").to_string()
}

/// Position, distance and loss of a target, and whether it got the highest output.
type Target = (usize, usize, f64, bool);

/// Every target of the evaluation set: read from the tokens as a reader would, and from the logits by plain
/// arithmetic. Keys are tokens 0 to 3, values 4 to 7.
fn by_hand(options: &Options, tokens: usize) -> Vec<Target> {
    let subject = Subject::open(&options.run, None, Path::new(""), "", &options.device).unwrap();
    let task = subject.task_config.stretched(tokens).unwrap().build(Path::new("")).unwrap();
    let model = subject.weights.model(subject.run.model_config(), &options.device).unwrap();
    let batch = task.eval_batch(0, 12);
    let cx = measuring(subject.run.model_config(), tokens, None, &options.device);
    let logits = model.forward(super::tokens(&batch, &options.device), &cx).logits;
    let logits: Vec<f64> = logits.into_data().iter::<f32>().map(f64::from).collect();
    let mut found = Vec::new();
    for (row, sequence) in batch.tokens.chunks(tokens).enumerate() {
        for position in tokens - 6..tokens {
            let key = sequence[..8].iter().position(|&token| token == sequence[position]).unwrap();
            let logits = &logits[(row * tokens + position) * 10..][..10];
            let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
            let answer = logits[sequence[key + 1] as usize];
            let best = logits.iter().all(|logit| *logit <= answer);
            found.push((position, position - key - 1, total.ln() - answer, best));
        }
    }
    found
}

#[test]
fn parts_are_what_a_reader_of_the_tokens_finds() {
    let folder = made("swa full reuse");
    let options = Options { contexts: vec![40, 70], ..options(&folder) };
    let evaluation = measured(&options);
    assert_eq!(evaluation.contexts(), [16, 40, 70]);
    for row in &evaluation.rows {
        let targets = by_hand(&options, row.context);
        assert_eq!((row.sequences, targets.len()), (12, 72));
        let all = row.all.unwrap();
        assert_eq!(all.targets, 72);
        for (parts, number) in [(&row.positions, 0), (&row.distances, 1)] {
            let mut seen = 0;
            for part in parts {
                let of = |target: &&Target| {
                    let number = [target.0, target.1][number];
                    (part.from..=part.to).contains(&number)
                };
                let inside: Vec<_> = targets.iter().filter(of).collect();
                let share = |of: &dyn Fn(&Target) -> f64| {
                    inside.iter().map(|target| of(target)).sum::<f64>() / inside.len() as f64
                };
                assert_eq!(part.measure.targets, inside.len());
                assert!((part.measure.loss.mean - share(&|target| target.2)).abs() < 1e-5, "{part:?}");
                assert!((part.measure.metric.mean - share(&|target| f64::from(u8::from(target.3)))).abs() < 1e-9);
                seen += inside.len();
            }
            assert_eq!(seen, 72, "every target has one part");
            let whole: f64 = parts.iter().map(|part| part.measure.loss.mean * part.measure.targets as f64).sum();
            assert!((whole / 72.0 - all.loss.mean).abs() < 1e-9);
        }
        assert!((all.loss.mean - row.values["loss"]).abs() < 1e-9);
        assert!((all.metric.mean - row.values["accuracy"]).abs() < 1e-9);
        for tag in &row.tags {
            assert!(
                (tag.measure.metric.mean - row.values[&format!("accuracy/{}", tag.name)]).abs() < 1e-9,
                "{}",
                tag.name
            );
        }
    }
    // The queries are the last six positions, so each has a part of its own; distances stand together where there are many.
    let last = evaluation.rows.last().unwrap();
    assert_eq!(last.positions.iter().map(|part| part.from).collect::<Vec<_>>(), [64, 65, 66, 67, 68, 69]);
    assert!(last.distances.len() <= 12 && last.distances[0].from > 56, "{:?}", last.distances);
}

#[test]
fn the_own_length_is_measured_as_training_measures_it() {
    let folder = made("swa full reindex");
    let options = options(&folder);
    let evaluation = measured(&Options { contexts: vec![32, 16], ..options.clone() });
    let subject = Subject::open(&options.run, None, Path::new(""), "", &options.device).unwrap();
    let model = subject.weights.model(subject.run.model_config(), &options.device).unwrap();
    let cx = measuring(subject.run.model_config(), 16, None, &options.device);
    let values: BTreeMap<String, f64> = evaluate(&model, &*subject.task, &cx, 5, &options.device).unwrap();
    assert_eq!(evaluation.values, values);
    assert_eq!((evaluation.training_context, evaluation.rows[0].context), (Some(16), 16));
    // Half of the sequences are half of the targets.
    let half = measured(&Options { sequences: Some(6), ..options });
    assert_eq!((half.rows[0].sequences, half.rows[0].all.unwrap().targets), (6, 36));
}

#[test]
fn switches_are_rows_of_the_same_weights() {
    let folder = made("full reindex");
    let switches = || ["pool=3x1", "quantization=none/none/fp8"].map(|switch| switch.parse().unwrap()).to_vec();
    let mut options = options(&folder);
    options.switches = switches()[..1].to_vec();
    let message = refused(&options);
    assert!(
        message
            .contains("measure them with a candidate pool of 3x1 (layer 0) (--switch pool=3x1); that is another model"),
        "{message}"
    );
    options.pool_override = true;
    let evaluation = measured(&options);
    assert_eq!(evaluation.settings(), ["as trained", "pool=3x1 †"]);
    let [trained, pooled] = &evaluation.rows[..] else { panic!("{:?}", evaluation.settings()) };
    assert_eq!((trained.mismatch(), &evaluation.pool_mismatch), (None, &None));
    assert_eq!(pooled.layers, "full+pool reindex");
    assert!(pooled.mismatch().unwrap().ends_with("measured with a candidate pool of 3x1 (layer 0)"));
    // The three entries of its pool are all that is read, and not always the three that an exact search finds.
    assert!(pooled.values["pool_recall/layer 1"] < 1.0 && pooled.all != trained.all);
    assert_eq!(pooled.tags.len(), trained.tags.len());
    assert_eq!(trained.difference, None);
    let gap = pooled.all.unwrap().metric.mean - trained.all.unwrap().metric.mean;
    assert!((pooled.difference.unwrap().mean - gap).abs() < 1e-9);
    assert!(evaluation.csv().contains(&format!("pool=3x1,\"{}\",16,16,difference,,,,,,", pooled.mismatch().unwrap())));

    options.switches = vec![switches()[0], switches()[0]];
    assert!(refused(&options).contains("is given twice"));
    options.pool_override = false;
    options.switches = switches()[1..].to_vec();
    let message = refused(&options);
    assert!(message.contains("--switch quantization=none/none/fp8") && message.contains("head_dim"), "{message}");
}

#[test]
fn text_is_told_in_bits_by_position() {
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..6_000_u32).map(|n| (n * n % 251) as u8).collect();
    std::fs::write(folder.path().join("bytes"), bytes).unwrap();
    let mut run = config("full reuse");
    run.task = toml::from_str(
        "kind = \"text\"\nfiles = [\"bytes\"]\nseq_len = 20\ndocument_bytes = 500\nvalidation_share = 0.5\neval_sequences = 8",
    )
    .unwrap();
    run.model.vocab_size = Some(256);
    save(&folder.path().join("run"), &run, &random_weights(&run.model, 3));
    let options = Options { base: folder.path().into(), contexts: vec![200], ..options(&folder) };
    let evaluation = measured(&options);
    assert_eq!(evaluation.metric_label(), "bits per byte");
    let [short, long] = &evaluation.rows[..] else { panic!("{:?}", evaluation.contexts()) };
    assert_eq!((short.positions.len(), long.positions.len()), (20, 29));
    assert_eq!((long.positions[0].to, long.positions[28].to), (6, 199));
    for row in [short, long] {
        assert!(row.distances.is_empty());
        let whole: f64 = row.positions.iter().map(|part| part.measure.metric.mean * part.measure.targets as f64).sum();
        assert!((whole / row.all.unwrap().targets as f64 - row.values["bits_per_byte"]).abs() < 1e-9);
        let bits = row.all.unwrap().loss.mean / std::f64::consts::LN_2;
        assert!((bits - row.values["bits_per_byte"]).abs() < 1e-9);
    }
    let message = refused(&Options { contexts: vec![5_000], ..options });
    assert!(
        message.contains("--context 5000: task `text`: `seq_len` is 5000") && message.contains("set it below"),
        "{message}"
    );
}

#[test]
fn lengths_that_cannot_be_are_refused_before_anything_is_measured() {
    let folder = made("full reuse");
    let mut options = options(&folder);
    options.contexts = vec![13];
    assert_eq!(
        refused(&options),
        "--context 13: task `mqar`: sequences of 13 tokens cannot be: `region` 8 and `queries` 6 stay as they are, so there are at least 14"
    );
    options.contexts = vec![70_000];
    assert!(refused(&options).contains("--context 70000: ") && refused(&options).contains("at most 65536 tokens"));
    options.contexts = vec![60_000];
    let needed = memory::needed(&config("full reuse").model, 60_000, 1);
    let message = plan(&options, Some(needed - 1)).err().unwrap().to_string();
    assert!(message.contains(&format!("need about {needed} bytes (")), "{message}");
    assert!(
        message.contains(&format!("but {} are free", needed - 1)) && message.contains("60000 tokens, 1 at a time"),
        "{message}"
    );
    assert!(plan(&options, Some(needed)).is_ok());
    options.contexts = vec![];
    options.sequences = Some(13);
    assert!(refused(&options).contains("--sequences 13: with sequences of 16 tokens the evaluation set has 12"));
}

#[test]
fn asked_to_stop_it_writes_nothing() {
    let folder = made("full reuse");
    let options = options(&folder);
    let ended = run(&options, &AtomicBool::new(true));
    assert!(matches!(ended, Err(EvaluationError::Interrupted)), "{ended:?}");
    assert!(!options.out.exists());
    run(&options, &AtomicBool::new(false)).unwrap();
    assert!(options.out.join("eval.json").exists() && options.out.join("eval.csv").exists());
}
