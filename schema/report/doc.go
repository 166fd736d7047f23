// Package report writes reports about problems in four formats: text, JSON, SARIF and the
// annotations of GitHub Actions. It does not depend on how a problem is found, or on which
// exit code a program returns for it.
//
// It is a separate package because the formats are documented interfaces to other
// programs and do not depend on the command that writes them.
//
// Every name in a report is escaped as its format requires, because a file name may
// contain line feeds and control characters. Only the text format has excerpts of
// lines, because services store reports in the other formats.
package report
