package server

import (
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Limits of failed logins, which are calls with an unknown token. Calls with valid tokens are never refused for their
// address, because all clients behind one proxy have the same address.
const (
	maxFailedLogins   = 20 // of one address in failedLoginWindow
	failedLoginWindow = time.Minute
	limitedAddresses  = 10_000 // in memory: about 2 MB
)

// failedLogins counts failed logins by address. It is safe for concurrent use.
type failedLogins struct {
	mu        sync.Mutex
	byAddress *simplelru.LRU[string, failedWindow]
}

// failedWindow is the time since the first of some failed logins.
type failedWindow struct {
	start time.Time
	count int
}

func newFailedLogins() *failedLogins {
	cache, err := simplelru.NewLRU[string, failedWindow](limitedAddresses, nil)
	if err != nil {
		panic(err) // only for a size below 1
	}
	return &failedLogins{byAddress: cache}
}

// add counts a failed login of an address, which may have a port. It returns nil, or the problem
// of one login too many.
func (f *failedLogins) add(address string, now time.Time) error {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	window, found := f.byAddress.Get(address)
	if !found || now.Sub(window.start) >= failedLoginWindow {
		window = failedWindow{start: now}
	}
	window.count++
	f.byAddress.Add(address, window)
	if window.count <= maxFailedLogins {
		return nil
	}
	seconds := int(math.Ceil((failedLoginWindow - now.Sub(window.start)).Seconds()))
	return &problem{
		code: http.StatusTooManyRequests, retryAfter: strconv.Itoa(seconds),
		message: "too many calls with an unknown token: check the token, and try again in " +
			strconv.Itoa(seconds) + " seconds",
	}
}
