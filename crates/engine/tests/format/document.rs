//! Holds the tables of docs/internals/format.md against the code's offsets.

use forebay_engine::format::STRUCTURES;

const DOCUMENT: &str = include_str!("../../../../docs/internals/format.md");

/// Rows `| offset | size | type | `field` | meaning |` of the table under a heading
/// `### Name (size bytes)`.
fn table(name: &str, size: usize) -> Vec<(String, usize, usize)> {
    let heading = format!("### {name} ({size} bytes)");
    let at = DOCUMENT.find(&format!("\n{heading}\n"));
    let text = &DOCUMENT[at.unwrap_or_else(|| panic!("no heading {heading:?}")) + 1..];
    let section = text.lines().skip(1).take_while(|line| !line.starts_with('#'));
    section
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let offset = cells.get(1)?.parse().ok()?;
            assert!(!cells[5].is_empty() && !cells[3].is_empty(), "{line}");
            Some((cells[4].trim_matches('`').to_owned(), offset, cells[2].parse().unwrap()))
        })
        .collect()
}

#[test]
fn every_table_of_the_specification_is_what_the_code_does() {
    for structure in STRUCTURES {
        let documented = table(structure.name, structure.size);
        let coded: Vec<_> = structure
            .fields
            .iter()
            .map(|field| (field.name.to_ascii_lowercase(), field.offset, field.size))
            .collect();
        assert_eq!(documented, coded, "{}", structure.name);
    }
}

#[test]
fn the_specification_has_no_structure_that_the_code_does_not_know() {
    let headings = DOCUMENT.lines().filter(|line| line.starts_with("### "));
    let tables = headings.filter(|line| line.ends_with(" bytes)")).count();
    assert_eq!(tables, STRUCTURES.len());
}
