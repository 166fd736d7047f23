package server

import "net/http"

// action is what a route does, as far as access depends on it.
type action string

const (
	answerAnyone     action = "answer anyone"     // needs no token
	readSelf         action = "read self"         // the user, and what is the same for all users
	manageSelf       action = "manage self"       // the tokens of the user
	listStacks       action = "list stacks"       // of sender.organization, or of all if it is empty
	readOrganization action = "read organization" // its pools, activities and projects
	administer       action = "administer"        // its pools, activities and options, and the list of its tokens
	administerTokens action = "administer tokens" // make and delete tokens of an organization
	createStacks     action = "create stacks"
	readStack        action = "read stack"   // and decrypt its secrets: stack references need both
	changeStack      action = "change stack" // everything that pulumi up, refresh, destroy and stack rm need
	deploy           action = "deploy"       // change and read deployments and their settings
	serveAgent       action = "serve agent"  // calls of the agents of a pool
	holdLease        action = "hold lease"   // calls of the agent that has a lease
	reportJob        action = "report job"   // calls of the runner of a job
	holdUpdate       action = "hold update"  // calls of the client that runs an update of a stack
)

// reach tells on what an action is allowed. The zero value is nothing.
type reach int

const (
	everywhere     reach = iota + 1 // in all organizations, or on what the handler finds for the token's subject
	inOrganization                  // in the organization of the token
	inStack                         // on the stack of the token
)

// access decides which token allows which action, and on what. Nothing else is allowed. A user may do everything
// in all organizations. The programs of a job may do what the job's stack needs, and read the other stacks of its
// organization.
var access = map[action]map[kind]reach{
	readSelf: {
		userToken: everywhere, administratorToken: everywhere, memberToken: everywhere, stackToken: everywhere,
	},
	manageSelf:       {userToken: everywhere},
	listStacks:       {userToken: everywhere, administratorToken: everywhere, memberToken: everywhere},
	readOrganization: {userToken: everywhere, administratorToken: inOrganization, memberToken: inOrganization},
	administer:       {userToken: everywhere, administratorToken: inOrganization},
	administerTokens: {userToken: everywhere},
	createStacks:     {userToken: everywhere, administratorToken: inOrganization, memberToken: inOrganization},
	readStack: {
		userToken: everywhere, administratorToken: inOrganization, memberToken: inOrganization,
		stackToken: inOrganization,
	},
	changeStack: {
		userToken: everywhere, administratorToken: inOrganization, memberToken: inOrganization, stackToken: inStack,
	},
	deploy:     {userToken: everywhere, administratorToken: inOrganization, memberToken: inOrganization},
	serveAgent: {poolToken: everywhere},
	holdLease:  {leaseToken: everywhere},
	reportJob:  {jobToken: everywhere},
	holdUpdate: {updateToken: inStack},
}

// authorize refuses a call that the table access does not allow. It compares the path with the organization and the
// stack of the token. The refusal does not depend on whether the organization or the stack exists.
func (c *call) authorize(do action) error {
	organization := c.PathValue("org")
	switch access[do][c.caller.kind] {
	case everywhere:
		return nil
	case inOrganization:
		if organization == c.caller.organization {
			return nil
		}
		return notFound("there is no organization %q", organization)
	case inStack:
		path := organization + "/" + c.PathValue("project") + "/" + c.PathValue("stack")
		if path == c.caller.stack {
			return nil
		}
		return notFound("there is no stack %s that this token may change", path)
	}
	return refuse(http.StatusForbidden, "a %s token does not allow this call", c.caller.kind)
}
