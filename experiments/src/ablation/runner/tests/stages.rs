//! Runs that start from others.

use super::*;

const AFTER: &str = "\n[[variant]]\nname = \"after\"\nfrom = \"shared\"\nlayers = \"full+pool reuse\"\n\
                     model.pool = { blocks = 2, block_size = 1 }\ntrain.tokens = 1_120\n";
const MEASURED: &str =
    "\n[[evaluation]]\nname = \"as it was\"\nlayers = \"full reuse\"\nof = [\"shared\", \"after\"]\n";

fn lines(lab: &Lab, variant: &str) -> Vec<serde_json::Value> {
    let text = String::from_utf8(lab.metrics(variant, 0)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_run_starts_where_another_ended() {
    let lab = Lab::new();
    // The follower stands in the queue while its start is still being trained.
    lab.done(&format!("{TINY}{AFTER}{MEASURED}"));
    let (shared, after) = (lab.summary("shared", 0), lab.summary("after", 0));
    assert_eq!((shared.status, after.status, after.steps), (Status::Finished, Status::Finished, 10));
    // The same weights in the same model: the same values.
    assert_eq!(shared.evaluations["as it was"], shared.final_values);
    let first = &lines(&lab, "after")[0];
    assert_eq!(first["step"], 0);
    let whole = format!(
        "{TINY}\n[[variant]]\nname = \"same\"\nfrom = \"shared\"\nlayers = \"full reuse\"\ntrain.tokens = 1_120\n"
    );
    let other = Lab::new();
    other.done(&whole);
    let start = &lines(&other, "same")[0]["values"];
    for (name, value) in &shared.final_values {
        assert_eq!(start[name].as_f64(), Some(*value), "{name}");
    }
    let text = fs::read_to_string(lab.dir("after", 0).join("config.toml")).unwrap();
    assert!(text.contains("[start]") && text.contains("step = 20"), "{text}");
    assert!(text.contains(&format!("config_hash = \"{}\"", shared.config_hash)), "{text}");
}

#[test]
fn a_measurement_that_was_added_later_is_made_up_for() {
    let lab = Lab::new();
    lab.done(&format!("{TINY}{AFTER}"));
    let before = lab.summary("after", 0);
    let windows = lab.files("windows", 0);
    lab.done(&format!("{TINY}{AFTER}{MEASURED}"));
    let after = lab.summary("after", 0);
    assert_eq!((&before.final_values, before.steps), (&after.final_values, after.steps));
    assert!(before.evaluations.is_empty() && after.evaluations.contains_key("as it was"));
    assert_eq!(lab.files("windows", 0), windows, "what it does not concern stays");
}

#[test]
fn what_starts_from_a_failed_run_fails_with_its_name() {
    let lab = Lab::new();
    let text = format!("{TINY}{AFTER}").replace(
        "layers = \"full reuse\"\n",
        "layers = \"full reuse\"\ntrain.learning_rate = 1e3\ntrain.clip = 1e30\n",
    );
    lab.done(&text);
    assert_eq!(lab.summary("shared", 0).status, Status::Failed);
    let failure = lab.summary("after", 0).failure.unwrap();
    assert_eq!(failure, "it starts from variant \"shared\", whose run with this seed has not come to its end");
}
