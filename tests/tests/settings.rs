//! `docs/SETTINGS.md` has what the library's own tables have.

use brigade_comm::{Settings, Variable};

#[test]
fn the_page_of_settings_has_every_one_with_its_meaning_and_default() {
    let page = page();
    for row in Settings::default().table() {
        let wanted = format!("| `{}` | {} | {} | ", row.name, row.meaning, row.default);
        assert!(page.contains(&wanted), "docs/SETTINGS.md lacks a line that begins {wanted}");
    }
    for Variable { name, meaning, .. } in Variable::ours() {
        let wanted = format!("| `{name}` | {meaning} |\n");
        assert!(page.contains(&wanted), "docs/SETTINGS.md lacks the line {wanted}");
    }
}

#[test]
fn the_page_of_settings_has_none_that_there_is_not() {
    let page = page();
    let known: Vec<&str> = Settings::default().table().iter().map(|row| row.name).collect();
    let known = || known.iter().copied().chain(Variable::ours().iter().map(|it| it.name));
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `BRIGADE_"));
    let mut count = 0;
    for row in rows {
        let name = format!("BRIGADE_{}", row.split('`').next().unwrap_or_default());
        assert!(known().any(|it| it == name), "{name} is on the page only");
        count += 1;
    }
    assert_eq!(count, known().count());
}

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/SETTINGS.md");
    std::fs::read_to_string(path).expect("the page is there")
}
