//! Pages that need nothing beside themselves: what those of papers and of measurements share.

use std::fmt::Write;

/// Colours that can be told apart by most people, and in grey (after Okabe and Ito).
pub const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

const STYLE: &str = "body{font:15px/1.4 sans-serif;margin:2em auto;max-width:60em;padding:0 1em;\
    color:#222;background:#fff}table{border-collapse:collapse;font-size:13px}\
    th,td{padding:.2em .6em;text-align:right;border-bottom:1px solid #ddd}\
    th:first-child,td:first-child{text-align:left}.missed,.failed{color:#b00020;font-weight:bold}\
    .met{color:#00662b}svg{max-width:100%;height:auto}text{font:11px sans-serif;fill:#444}\
    li{margin:.2em 0}pre{background:#f4f4f4;padding:.6em;white-space:pre-wrap;font-size:12px}";

/// A text as HTML has it.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The beginning of a page, up to its head line.
pub fn begin(title: &str) -> String {
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
    )
}

/// The page with its end.
pub fn end(mut page: String) -> String {
    page.push_str("</body></html>\n");
    page
}

/// Adds a table; verdicts have a colour.
pub fn table(page: &mut String, head: &[&str], lines: &[Vec<String>]) {
    page.push_str("<table><thead><tr>");
    for cell in head {
        let _ = write!(page, "<th>{}</th>", escaped(cell));
    }
    page.push_str("</tr></thead><tbody>");
    for line in lines {
        page.push_str("<tr>");
        for cell in line {
            let class =
                if ["met", "missed", "failed"].contains(&cell.as_str()) { cell } else { "" };
            let _ = write!(page, "<td class=\"{class}\">{}</td>", escaped(cell));
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table>");
}

/// The beginning of a drawing; `</svg>` ends it.
pub fn drawing(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\">"
    )
}
