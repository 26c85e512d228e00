//! Three entries on a line: what each can get, as the query sweeps.

use super::FigureError;
use super::plane::style;
use crate::geometry::{Entries, ReadOut};
use crate::report::drawing::{Axis, Frame, HPos, INK, MUTED, UNIT, VPos, draw as draw_frame};

pub fn draw() -> Result<String, FigureError> {
    let entries = [-1.0, 0.0, 1.0];
    let read_out = ReadOut::attention(Entries::from_rows(&entries.map(|c| [c]))?)?;
    let queries: Vec<f64> = (-120..=120).map(|step| f64::from(step) / 20.0).collect();
    let mut curves = vec![Vec::new(); 3];
    for q in &queries {
        let p = read_out.read(&[*q])?.p;
        curves.iter_mut().zip(p).for_each(|(curve, p)| curve.push((*q, p)));
    }
    let frame = Frame {
        title: "What three entries on a line can get",
        size: (620, 340),
        sides: (44, 18),
        x: Axis::linear(&[-6.0, 6.0], (-6.0, 6.0)),
        y: Axis::linear(&[0.0, 1.0], (0.0, 1.0)),
        x_title: "query",
        y_title: "probability",
    };
    Ok(draw_frame(&frame, |canvas| {
        let third = 1.0 / 3.0;
        let (left, right) = (canvas.at(-6.0, third), canvas.at(6.0, third));
        canvas.line(vec![left, right], MUTED, 1.0, Some((4, 4)))?;
        canvas.text((right.0 - 4 * UNIT, right.1 - 4 * UNIT), "1/3", HPos::Right, VPos::Bottom, INK)?;
        for (index, curve) in curves.iter().enumerate() {
            let style = style(index);
            canvas.line(curve.iter().map(|(q, p)| canvas.at(*q, *p)).collect(), style.colour, 2.2, style.dash)?;
        }
        for (index, (x, y, across)) in
            [(-4.2, 0.9, HPos::Left), (1.7, 0.25, HPos::Left), (4.2, 0.9, HPos::Right)].into_iter().enumerate()
        {
            let text = format!("entry {}", entries[index]);
            canvas.text(canvas.at(x, y), &text, across, VPos::Center, style(index).colour)?;
        }
        canvas.marker(canvas.at(0.0, third), &style(1), 4.5)
    })?)
}
