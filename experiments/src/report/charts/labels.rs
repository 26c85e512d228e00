//! Room for the labels of points.

use super::plot::{Place, TEXT, UNIT, text_width};

/// A rectangle on the drawing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Room {
    /// Left edge.
    pub left: i32,
    /// Upper edge.
    pub top: i32,
    /// Right edge.
    pub right: i32,
    /// Lower edge.
    pub bottom: i32,
}

impl Room {
    /// The rectangle around a place.
    pub fn around((x, y): Place, half_width: i32, half_height: i32) -> Self {
        Self { left: x - half_width, top: y - half_height, right: x + half_width, bottom: y + half_height }
    }

    /// The rectangle that a line between two places takes.
    pub fn between(one: Place, other: Place) -> Self {
        Self {
            left: one.0.min(other.0),
            top: one.1.min(other.1),
            right: one.0.max(other.0) + 1,
            bottom: one.1.max(other.1) + 1,
        }
    }

    /// Its middle.
    pub fn centre(&self) -> Place {
        (self.left.midpoint(self.right), self.top.midpoint(self.bottom))
    }

    fn meets(&self, other: &Self) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    fn inside(&self, (left, top, right, bottom): (i32, i32, i32, i32)) -> bool {
        self.left >= left && self.right <= right && self.top >= top && self.bottom <= bottom
    }
}

/// Finds for each point a place of its label that meets no marker, bar or earlier label, and none of the `lines` if that
/// can be helped; `None` where there is none.
pub fn place_labels(
    points: &[Place],
    texts: &[String],
    taken: &[Room],
    lines: &[Room],
    bounds: (i32, i32, i32, i32),
) -> Vec<Option<Room>> {
    let mut taken = taken.to_vec();
    let mut found = Vec::with_capacity(points.len());
    for ((x, y), text) in points.iter().zip(texts) {
        let (half_width, half_height) = (text_width(text) * UNIT / 2 + UNIT, (TEXT * 0.65) as i32 * UNIT);
        let (beside, above) = (half_width + 11 * UNIT, half_height + 10 * UNIT);
        let offsets = [
            (beside, 0),
            (-beside, 0),
            (0, -above),
            (0, above),
            (beside, -above),
            (beside, above),
            (-beside, -above),
            (-beside, above),
            (0, -2 * above),
            (0, 2 * above),
        ];
        let free: Vec<Room> = offsets
            .iter()
            .map(|(across, along)| Room::around((x + across, y + along), half_width, half_height))
            .filter(|room| room.inside(bounds) && !taken.iter().any(|other| other.meets(room)))
            .collect();
        let clear = free.iter().find(|room| !lines.iter().any(|line| line.meets(room)));
        let room = clear.or(free.first()).copied();
        taken.extend(room);
        found.push(room);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: (i32, i32, i32, i32) = (0, 0, 2400, 1200);

    #[test]
    fn labels_meet_neither_each_other_nor_markers() {
        let points = [(1000, 600), (1040, 620), (1080, 600), (2300, 100)];
        let texts = ["one".to_owned(), "two".to_owned(), "three".to_owned(), "at the edge".to_owned()];
        let taken: Vec<Room> = points.iter().map(|point| Room::around(*point, 32, 32)).collect();
        let rooms: Vec<Room> =
            place_labels(&points, &texts, &taken, &[], BOUNDS).into_iter().map(Option::unwrap).collect();
        for (index, room) in rooms.iter().enumerate() {
            assert!(room.inside(BOUNDS));
            assert!(!taken.iter().any(|other| other.meets(room)));
            assert!(!rooms[..index].iter().any(|other| other.meets(room)));
        }
    }

    #[test]
    fn lines_are_avoided_only_where_there_is_a_choice() {
        let texts = ["one".to_owned()];
        let beside = place_labels(&[(1000, 600)], &texts, &[], &[], BOUNDS);
        let across = [Room::between((0, 600), (2400, 600))];
        let moved = place_labels(&[(1000, 600)], &texts, &[], &across, BOUNDS);
        assert!(moved[0].is_some() && moved != beside);
        let everywhere = [Room::around((1000, 600), 900, 500)];
        assert_eq!(place_labels(&[(1000, 600)], &texts, &[], &everywhere, BOUNDS), beside);
    }

    #[test]
    fn a_crowd_is_numbered_instead() {
        let points = vec![(1000, 600); 30];
        let texts = vec!["a very long name of a variant".to_owned(); 30];
        assert!(place_labels(&points, &texts, &[], &[], BOUNDS).contains(&None));
    }
}
