package docker

import (
	"fmt"
	"time"

	"github.com/moby/moby/api/types/jsonstream"
)

// pullProgress reduces the many messages of an engine about a pull to a few lines: the
// result of each layer, the progress of a long download, and the digest.
type pullProgress struct {
	layers map[string]jsonstream.Progress // layers that are downloaded, by id
	last   time.Time                      // time of the last line about the download
}

func newPullProgress(now time.Time) *pullProgress {
	return &pullProgress{layers: map[string]jsonstream.Progress{}, last: now}
}

func (p *pullProgress) lines(message jsonstream.Message, now time.Time) []string {
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
			p.layers[message.ID] = *message.Progress
		}
		if now.Sub(p.last) < pullLogInterval {
			return nil
		}
		p.last = now
		return []string{p.total()}
	case "Download complete":
		if layer, ok := p.layers[message.ID]; ok {
			layer.Current = max(layer.Current, layer.Total)
			p.layers[message.ID] = layer
		}
		return nil
	case "Pulling fs layer", "Waiting", "Extracting", "Verifying Checksum":
		return nil
	default: // the name of the repository, and "Retrying in …"
		return []string{message.ID + ": " + message.Status}
	}
}

func (p *pullProgress) total() string {
	var current, total int64
	for _, layer := range p.layers {
		current += layer.Current
		total += max(layer.Total, layer.Current)
	}
	const mega = 1 << 20
	return fmt.Sprintf("Downloaded %.1f MiB of %.1f MiB so far", float64(current)/mega, float64(total)/mega)
}
