package kube

// Selectors of jobs' Pods. The agents of a group see each other's; a kept Pod is
// nobody's.
const (
	everyWorker = labelManagedBy + "=" + managedByValue
	notKept     = "," + labelKeep + "!=" + keepUntil
)

// watched returns the selector of the Pods that an agent watches: those of its
// group, so that it sees the Pods of an agent that ends. An agent that does not know
// its own Pod watches those with its id, and one without an id watches all.
func watched(s self, agent string) string {
	switch {
	case s.known():
		return everyWorker + "," + labelGroup + "=" + s.group + notKept
	case agent != "":
		return everyWorker + "," + labelAgent + "=" + labelValue(agent)
	}
	return everyWorker
}

// owned returns the selector of an agent's own Pods.
func owned(s self, agent string) string {
	if s.known() {
		return watched(s, agent) + "," + labelOwner + "=" + labelValue(s.owner.Name)
	}
	return everyWorker + "," + labelAgent + "=" + labelValue(agent)
}

// kept returns the selector of the Pods of failed jobs that the agent removes at
// their time: those of its group, or those of agents without one.
func kept(s self) string {
	keeps := everyWorker + "," + labelKeep + "=" + keepUntil
	if s.known() {
		return keeps + "," + labelGroup + "=" + s.group
	}
	return keeps + ",!" + labelGroup
}
