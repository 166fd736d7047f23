// Package page is the web page of the service: deployments with their logs, stacks and agent pools, for a
// person with a browser. It knows HTTP and templates. It gets values from the functions of a [Source], so it
// has no SQL and makes no decision about who may read what.
//
// # Decisions
//
//   - There is no build step and no library for the browser: html/template, one stylesheet and one script,
//     all embedded. Each page is complete without the script.
//   - The script requests the page that is shown once more and copies the differences into it. So each page
//     has one representation, a name from outside is escaped in one place, and the page needs no access to the
//     JSON API. For a log, the request names the position after the last line, and the page has only new lines.
//   - A sign-in exchanges an access token for a session, which ends after [Session] or with the token. The
//     cookie contains only the session, so a browser never stores the access token.
//   - The Content-Security-Policy allows only the files of this package: no inline script, style or handler.
//     Form posts are accepted only from the page itself: the cookie is SameSite=Strict, and
//     [http.CrossOriginProtection] compares Sec-Fetch-Site or Origin with the host.
//   - Lists continue after the last key of a page ("before=…", "after=…"), never after a number of rows, so that
//     the last page of 10,000 stacks costs as much as the first.
//   - With 10,000 stacks, 200,000 updates and 50,000 deployments a page took 1 to 4 ms of processor time, a search in
//     the names of stacks 31 ms, and a page of 1 MB of events 49 ms. The pages of a stack read its whole state, which
//     took 7 ms for each MB. A cache would make them faster, and would be one more place with outputs.
package page
