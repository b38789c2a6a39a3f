//! What somebody meant who typed another name.

/// Whether `typed` is `name` but for one slip: a letter that is wrong, missing or too many, or two
/// neighbours that have changed places. `name` is in lower case.
pub(crate) fn is_near(name: &str, typed: &str) -> bool {
    let (name, typed) = (name.as_bytes(), typed.to_ascii_lowercase().into_bytes());
    let alike = name.iter().zip(&typed).take_while(|(one, other)| one == other).count();
    let (name, typed) = (&name[alike..], &typed[alike..]);
    match (name, typed) {
        ([], []) | ([], [_]) | ([_], []) => true,
        ([one, rest @ ..], [other, others @ ..]) => {
            let swapped = matches!((rest, others), ([first, rest @ ..], [second, others @ ..])
                if one == second && other == first && rest == others);
            swapped || rest == others || rest == typed || name == others
        }
        _ => false,
    }
}
