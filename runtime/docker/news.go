package docker

import (
	"fmt"
	"time"

	"github.com/moby/moby/api/types/jsonstream"
)

// newsEvery is the time between two lines that say how far a pull is.
const newsEvery = 10 * time.Second

// news makes of an engine's many messages about a pull the few lines that a
// person wants to read: what became of each layer, how far a long download is,
// and the digest.
type news struct {
	layers map[string]jsonstream.Progress // being downloaded
	last   time.Time                      // when it was said how far the pull is
}

func newNews(now time.Time) *news {
	return &news{layers: map[string]jsonstream.Progress{}, last: now}
}

// lines are what a message adds to the log.
func (n *news) lines(message jsonstream.Message, now time.Time) []string {
	switch {
	case message.Status == "":
		return nil
	case message.ID == "":
		return []string{message.Status} // digest, status, warnings
	}
	switch message.Status {
	case "Already exists", "Pull complete":
		return []string{message.ID + ": " + message.Status}
	case "Downloading":
		if message.Progress != nil {
			n.layers[message.ID] = *message.Progress
		}
		if now.Sub(n.last) < newsEvery {
			return nil
		}
		n.last = now
		return []string{n.total()}
	case "Download complete":
		if p, ok := n.layers[message.ID]; ok {
			p.Current = max(p.Current, p.Total)
			n.layers[message.ID] = p
		}
		return nil
	case "Pulling fs layer", "Waiting", "Extracting", "Verifying Checksum":
		return nil
	default: // the name that is pulled from, and "Retrying in …"
		return []string{message.ID + ": " + message.Status}
	}
}

// total says how much of the layers that are on their way has arrived.
func (n *news) total() string {
	var current, total int64
	for _, p := range n.layers {
		current += p.Current
		total += max(p.Total, p.Current)
	}
	const mega = 1 << 20
	return fmt.Sprintf("Downloaded %.1f MiB of %.1f MiB so far", float64(current)/mega, float64(total)/mega)
}
