//! The gate of a mixture of experts, with every function of its scores that the case has.

use burn::tensor::DType;
use csa2_model::block::Gate;
use csa2_model::checkpoint::load;
use csa2_model::config::ScoreFunction;

use crate::conform::Place;
use crate::conform::block::ascending;
use crate::conform::case::Case;
use crate::conform::check::{Check, numbers};
use crate::conform::error::CaseError;
use crate::conform::tolerance::COMPONENT;

const FUNCTIONS: [ScoreFunction; 3] = [ScoreFunction::SqrtSoftplus, ScoreFunction::Sigmoid, ScoreFunction::Softmax];

/// Compares choices and weights.
pub fn run(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    let case = check.case;
    let [rows, channels] = case.dims("gate.x")?;
    let [experts, _] = case.dims("gate.weight")?;
    let indices = |function: ScoreFunction| format!("gate.{}.indices", function.name());
    let there: Vec<ScoreFunction> = FUNCTIONS.into_iter().filter(|function| case.has(&indices(*function))).collect();
    if there.is_empty() {
        let needed = "the case needs at least one function of the scores".into();
        return Err(CaseError::Missing { name: "gate.*.indices".into(), needed });
    }
    for function in there {
        let [_, active] = case.dims(&indices(function))?;
        if active > experts {
            let expected = format!("at most {experts} experts a token");
            return Err(CaseError::Shape { name: indices(function), found: vec![rows, active], expected });
        }
        let expected = case.ints(&indices(function), &[rows, active], 0..experts as i64)?;
        let weights = case.floats(&format!("gate.{}.weights", function.name()), &[rows, active])?;
        let scale = scale(case, weights.rows())?;
        let gate = Gate::new(channels, experts, active, scale, function, &place.device);
        let stored = [("weight", "gate.weight"), ("bias", "gate.bias")];
        let stored = stored.map(|(short, name)| Ok((short.to_owned(), case.weight(name)?)));
        let stored = stored.into_iter().collect::<Result<_, CaseError>>()?;
        let gate = load(gate, stored, case.name())?;
        let routing = gate.route(case.tensor("gate.x", [rows, channels], &place.device, DType::F32)?);
        let chosen = routing.experts.iter().map(|&expert| expert as i64).collect();
        let (found, found_weights) = ascending(chosen, numbers(routing.weights)?, active);
        check.equal(&expected.name, &found, &expected);
        check.close(&weights.name, &found_weights, &weights, COMPONENT);
    }
    Ok(())
}

/// What a token's weights sum to: the JSON's `route_scale`, or where it has none the mean over the tokens of the case.
fn scale<'a>(case: &Case, rows: impl Iterator<Item = &'a [f64]>) -> Result<f64, CaseError> {
    if case.find("route_scale").is_some() {
        return case.number("route_scale");
    }
    let sums: Vec<f64> = rows.map(|row| row.iter().sum()).collect();
    Ok(sums.iter().sum::<f64>() / sums.len() as f64)
}
