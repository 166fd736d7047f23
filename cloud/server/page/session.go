package page

import (
	"errors"
	"net/http"
	"strings"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// cookieName is the name of the cookie with the session.
const cookieName = "cmwa-session"

// maxForm limits the body of a form in bytes. A token is much shorter.
const maxForm = 16 << 10

// user returns the name of the user who has signed in, or "".
func (p *pages) user(r *http.Request) (string, error) {
	session, ok := session(r)
	if !ok {
		return "", nil
	}
	return p.source.User(r.Context(), session)
}

func session(r *http.Request) (secret.String, bool) {
	cookie, err := r.Cookie(cookieName)
	if err != nil || cookie.Value == "" {
		return secret.String{}, false
	}
	return secret.New(cookie.Value), true
}

// signInForm is what the template of the form gets.
type signInForm struct {
	Next    string // path of the page after the sign-in
	Problem string
}

func (p *pages) showSignIn(w http.ResponseWriter, r *http.Request) {
	p.writeSignIn(w, r, http.StatusOK, signInForm{Next: local(r.URL.Query().Get("next"))})
}

func (p *pages) writeSignIn(w http.ResponseWriter, r *http.Request, code int, form signInForm) {
	p.write(w, r, code, view{template: "sign-in", Title: "Sign in", Data: form})
}

// signIn exchanges the token of the form for a session.
func (p *pages) signIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		p.writeSignIn(w, r, http.StatusBadRequest, signInForm{Problem: "The form is incomplete or too large."})
		return
	}
	form := signInForm{Next: local(r.PostForm.Get("next"))}
	session, err := p.source.SignIn(r.Context(), r.RemoteAddr, secret.New(strings.TrimSpace(r.PostForm.Get("token"))))
	if errors.Is(err, ErrToken) {
		form.Problem = "This token is unknown, has expired, or is not a user's."
		p.writeSignIn(w, r, http.StatusUnauthorized, form)
		return
	}
	if err != nil {
		p.fail(w, r, "", err)
		return
	}
	http.SetCookie(w, p.cookie(r, session.Reveal(), int(Session.Seconds())))
	http.Redirect(w, r, form.Next, http.StatusSeeOther)
}

func (p *pages) signOut(w http.ResponseWriter, r *http.Request) {
	if session, ok := session(r); ok {
		if err := p.source.SignOut(r.Context(), session); err != nil {
			p.fail(w, r, "", err)
			return
		}
	}
	http.SetCookie(w, p.cookie(r, "", -1))
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
}

func (p *pages) cookie(r *http.Request, value string, seconds int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: seconds,
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: p.secure || r.TLS != nil,
	}
}

// local returns a path of this service, and / for everything else. A browser would read "//host" and "/\host"
// as the address of another service.
func local(path string) string {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "\\\t\r\n") {
		return "/"
	}
	return path
}
